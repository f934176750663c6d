// SPDX-License-Identifier: Apache-2.0
//! Sums over the width in a fixed order: butterflies in groups of lanes, groups of a head by the
//! lanes of one warp.
#pragma once

#include <mhar/block/detail/block_sum.cuh>
#include <mhar/block/route_gradient_params.cuh>
#include <mhar/thread/vector.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

inline constexpr unsigned all_lanes = 0xffffffffu;

//! Adds `Count` independent values over every `lanes` consecutive lanes, a power of two.
template <std::size_t Count, class Accumulate>
__device__ __forceinline__ void butterfly(Accumulate (&sums)[Count], int lanes)
{
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (std::size_t i = 0; i < Count; ++i) {
      sums[i] += __shfl_xor_sync(all_lanes, sums[i], offset);
    }
  }
}

//! One round of a butterfly that halves the number of values a lane carries: lanes with `upper`
//! keep the second half. One shuffle serves two values.
template <int Count, class Accumulate>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, Count / 2> exchange_sum(
    const thread::vector<Accumulate, Count>& values, int offset, bool upper)
{
  thread::vector<Accumulate, Count / 2> kept;
#pragma unroll
  for (int i = 0; i < Count / 2; ++i) {
    const Accumulate sent = upper ? values[i] : values[i + Count / 2];
    kept[i] =
        (upper ? values[i + Count / 2] : values[i]) + __shfl_xor_sync(all_lanes, sent, offset);
  }
  return kept;
}

//! The sum of `count` values, dealt to the lanes of a warp in turn; every lane holds it.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate dealt_sum(const Accumulate* values, int count)
{
  Accumulate sum = 0;
  for (int i = static_cast<int>(threadIdx.x % 32); i < count; i += 32) { sum += values[i]; }
  return warp_sum(sum);
}

//! The sum of a head's groups, dealt to the lanes that finish the head; each of them holds it. All
//! lanes of the warp call.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate head_sum(const Accumulate* groups,
                                                             const gradient_map& map, int head,
                                                             int num_heads)
{
  Accumulate sum[1] = {0};
  if (head < num_heads) {
    const int lane = static_cast<int>(threadIdx.x) & (map.finish_lanes - 1);
    for (int i = lane; i < map.groups_per_head; i += map.finish_lanes) {
      sum[0] += groups[head * map.groups_per_head + i];
    }
  }
  butterfly(sum, map.finish_lanes);
  return sum[0];
}

}  // namespace block::detail
MHAR_NAMESPACE_END
