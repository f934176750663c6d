// SPDX-License-Identifier: Apache-2.0
//! A value for each column that a thread owns: in registers where the number of chunks is known,
//! else in memory of the block.
#pragma once

#include <mhar/thread/vector.hpp>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Width values at a 16-byte boundary.
template <class Accumulate, int Width>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, Width> load_wide(
    const Accumulate* from)
{
  constexpr int step = thread::chunk_width<Accumulate>;
  thread::vector<Accumulate, Width> result;
#pragma unroll
  for (int i = 0; i < Width; i += step) {
    const auto part = thread::load_vector<Accumulate, step>(from + i);
#pragma unroll
    for (int k = 0; k < step; ++k) { result[i + k] = part[k]; }
  }
  return result;
}

template <class Accumulate, int Width>
__device__ __forceinline__ void store_wide(Accumulate* to,
                                           const thread::vector<Accumulate, Width>& value)
{
  constexpr int step = thread::chunk_width<Accumulate>;
#pragma unroll
  for (int i = 0; i < Width; i += step) {
    thread::vector<Accumulate, step> part;
#pragma unroll
    for (int k = 0; k < step; ++k) { part[k] = value[i + k]; }
    thread::store_vector(to + i, part);
  }
}

//! Chunks [0, Chunks) of one thread in registers: `chunk` must be known when compiled.
template <class Accumulate, int Width, int Chunks>
class register_chunks
{
public:
  using values = thread::vector<Accumulate, Width>;

  __device__ __forceinline__ explicit register_chunks(Accumulate*, int) {}
  [[nodiscard]] __device__ __forceinline__ values get(int chunk) const { return chunks_[chunk]; }
  __device__ __forceinline__ void set(int chunk, const values& value) { chunks_[chunk] = value; }

private:
  values chunks_[static_cast<std::size_t>(Chunks)];
};

//! The same in memory that no other thread uses, `num_threads` chunks from one of its own to the
//! next.
template <class Accumulate, int Width>
class memory_chunks
{
public:
  using values = thread::vector<Accumulate, Width>;

  __device__ __forceinline__ explicit memory_chunks(Accumulate* all_threads, int num_threads)
      : first_{all_threads + threadIdx.x * Width}, stride_{num_threads * Width}
  {
  }
  [[nodiscard]] __device__ __forceinline__ values get(int chunk) const
  {
    return load_wide<Accumulate, Width>(first_ + chunk * stride_);
  }
  __device__ __forceinline__ void set(int chunk, const values& value)
  {
    store_wide(first_ + chunk * stride_, value);
  }

private:
  Accumulate* first_;
  int stride_;
};

template <class Accumulate, int Width, int Chunks>
using owned_columns =
    cuda::std::conditional_t<(Chunks > 0),
                             register_chunks<Accumulate, Width, (Chunks > 0 ? Chunks : 1)>,
                             memory_chunks<Accumulate, Width>>;

}  // namespace block::detail
MHAR_NAMESPACE_END
