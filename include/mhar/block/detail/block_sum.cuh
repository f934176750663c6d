// SPDX-License-Identifier: Apache-2.0
//! Sums over a warp and over a block in a fixed order, known to every thread.
#pragma once

#include <mhar/config.hpp>

#include <cstddef>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! The sum over the warp, in every lane.
template <class Accumulate>
__device__ __forceinline__ Accumulate warp_sum(Accumulate value)
{
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

//! The maximum over the warp, in every lane.
template <class Accumulate>
__device__ __forceinline__ Accumulate warp_max(Accumulate value)
{
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Accumulate other = __shfl_xor_sync(0xffffffffu, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

//! Sums over all threads of a block. Two barriers; all threads must call.
template <class Accumulate, int Threads>
class block_sum
{
public:
  struct storage
  {
    Accumulate parts[static_cast<std::size_t>(Threads / 32)];
  };

  __device__ explicit block_sum(storage& shared) : shared_{shared} {}

  [[nodiscard]] __device__ Accumulate operator()(Accumulate value) const
  {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) { shared_.parts[threadIdx.x / 32] = value; }
    __syncthreads();
    Accumulate sum = 0;
    for (int warp = 0; warp < Threads / 32; ++warp) { sum += shared_.parts[warp]; }
    __syncthreads();
    return sum;
  }

private:
  storage& shared_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
