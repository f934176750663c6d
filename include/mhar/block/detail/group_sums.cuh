// SPDX-License-Identifier: Apache-2.0
//! Sums of chunks over a group and of groups over a head or a row, in the order that thread::width_tree fixes.
#pragma once

#include <mhar/thread/vector.hpp>
#include <mhar/thread/width_tree.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

inline constexpr unsigned full_warp = 0xffffffffu;

//! Butterfly over `lanes` lanes, a power of two: every lane gets the sum.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate butterfly_sum(Accumulate value, int lanes)
{
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(full_warp, value, offset);
  }
  return value;
}

//! One round of a butterfly that halves the number of values a lane carries: lanes with `upper` keep the second half. The
//! sums are those of butterfly_sum, with one shuffle for two values.
template <int Count, class Accumulate>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, Count / 2> exchange_sum(
    const thread::vector<Accumulate, Count>& values, int offset, bool upper)
{
  thread::vector<Accumulate, Count / 2> kept;
#pragma unroll
  for (int i = 0; i < Count / 2; ++i) {
    const Accumulate sent = upper ? values[i] : values[i + Count / 2];
    kept[i] =
        (upper ? values[i + Count / 2] : values[i]) + __shfl_xor_sync(full_warp, sent, offset);
  }
  return kept;
}

//! Sums eight values of this lane's chunk over the chunk's group and stores value v at sums[v*stride + group]. All lanes of the
//! warp call; a lane without a chunk passes `valid` false.
template <class Accumulate>
__device__ __forceinline__ void store_group_sums(const thread::vector<Accumulate, 8>& values,
                                                 Accumulate* sums, int stride, int chunk,
                                                 int group_size, bool valid)
{
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (group_size >= 8) {
    const int half = group_size / 2;
    const int quarter = group_size / 4;
    const int eighth = group_size / 8;
    const auto four = exchange_sum<8>(values, half, (lane & half) != 0);
    const auto two = exchange_sum<4>(four, quarter, (lane & quarter) != 0);
    const auto one = exchange_sum<2>(two, eighth, (lane & eighth) != 0);
    const Accumulate sum = butterfly_sum(one[0], eighth);
    const int index = ((lane & half) != 0 ? 4 : 0) + ((lane & quarter) != 0 ? 2 : 0) +
                      ((lane & eighth) != 0 ? 1 : 0);
    if (valid && (lane & (eighth - 1)) == 0) { sums[index * stride + chunk / group_size] = sum; }
    return;
  }
#pragma unroll
  for (int v = 0; v < 8; ++v) {
    const Accumulate sum = butterfly_sum(values[v], group_size);
    if (valid && (lane & (group_size - 1)) == 0) { sums[v * stride + chunk / group_size] = sum; }
  }
}

//! The sum of one value of this lane's chunk over its group.
template <class Accumulate>
__device__ __forceinline__ void store_group_sum(Accumulate value, Accumulate* sums, int chunk,
                                                int group_size, bool valid)
{
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Accumulate sum = butterfly_sum(value, group_size);
  if (valid && (lane & (group_size - 1)) == 0) { sums[chunk / group_size] = sum; }
}

//! Sum of `count` group sums by `lanes` neighbouring lanes, of which this is number `lane`; every lane gets it.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate sum_groups(const Accumulate* sums, int count,
                                                               int lane, int lanes)
{
  Accumulate sum = 0;
  for (int group = lane; group < count; group += lanes) { sum += sums[group]; }
  return butterfly_sum(sum, lanes);
}

}  // namespace block::detail
MHAR_NAMESPACE_END
