// SPDX-License-Identifier: Apache-2.0
//! Sums of chunks over a span and of spans over a head or a row, in the order that thread::width_tree fixes.
#pragma once

#include <mhar/thread/vector.hpp>
#include <mhar/thread/width_tree.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

inline constexpr unsigned full_warp = 0xffffffffu;

//! The warp of this thread, as a value that the compiler knows to be the same in all its lanes.
[[nodiscard]] __device__ __forceinline__ int warp_of_thread()
{
  return __shfl_sync(full_warp, static_cast<int>(threadIdx.x) / 32, 0);
}

//! Butterfly over `lanes` lanes, a power of two, for several values at a time: every lane gets the sums.
template <int Count, class Accumulate>
__device__ __forceinline__ void butterfly_sums(thread::vector<Accumulate, Count>& values, int lanes)
{
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    if (offset >= lanes) { continue; }
#pragma unroll
    for (int i = 0; i < Count; ++i) { values[i] += __shfl_xor_sync(full_warp, values[i], offset); }
  }
}

template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate butterfly_sum(Accumulate value, int lanes)
{
  thread::vector<Accumulate, 1> values{{value}};
  butterfly_sums(values, lanes);
  return values[0];
}

//! Sums two values over each group of 2^group_shift lanes and stores them at sums[0] and sums[stride], where `sums` is the entry
//! of the lane's span. All lanes of the warp call; one without a chunk passes `valid` false.
template <class Accumulate>
__device__ __forceinline__ void store_group_sums(Accumulate first, Accumulate second,
                                                 Accumulate* sums, int stride, int group_shift,
                                                 bool valid)
{
  const int lane = static_cast<int>(threadIdx.x) & 31;
  if (group_shift == 0) {
    if (valid) {
      sums[0] = first;
      sums[stride] = second;
    }
    return;
  }
  // The upper half of a group's lanes goes on with the second value, the lower half with the first: one shuffle for two sums.
  const int half = 1 << (group_shift - 1);
  const bool upper = (lane & half) != 0;
  Accumulate sum =
      (upper ? second : first) + __shfl_xor_sync(full_warp, upper ? first : second, half);
  if (half > 8) { sum += __shfl_xor_sync(full_warp, sum, 8); }
  if (half > 4) { sum += __shfl_xor_sync(full_warp, sum, 4); }
  if (half > 2) { sum += __shfl_xor_sync(full_warp, sum, 2); }
  if (half > 1) { sum += __shfl_xor_sync(full_warp, sum, 1); }
  if (valid && (lane & (half - 1)) == 0) { sums[upper ? stride : 0] = sum; }
}

//! The same for two rows at a time, whose entries lie `row_stride` apart.
template <class Accumulate>
__device__ __forceinline__ void store_group_sums(const thread::vector<Accumulate, 4>& values,
                                                 Accumulate* sums, int row_stride, int stride,
                                                 int group_shift, bool valid)
{
  if (group_shift < 2) {
    store_group_sums(values[0], values[1], sums, stride, group_shift, valid);
    store_group_sums(values[2], values[3], sums + row_stride, stride, group_shift, valid);
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int half = 1 << (group_shift - 1);
  const int quarter = half >> 1;
  const bool second_row = (lane & half) != 0;
  const bool second_value = (lane & quarter) != 0;
  const Accumulate a = (second_row ? values[2] : values[0]) +
                       __shfl_xor_sync(full_warp, second_row ? values[0] : values[2], half);
  const Accumulate b = (second_row ? values[3] : values[1]) +
                       __shfl_xor_sync(full_warp, second_row ? values[1] : values[3], half);
  Accumulate sum =
      (second_value ? b : a) + __shfl_xor_sync(full_warp, second_value ? a : b, quarter);
  if (quarter > 4) { sum += __shfl_xor_sync(full_warp, sum, 4); }
  if (quarter > 2) { sum += __shfl_xor_sync(full_warp, sum, 2); }
  if (quarter > 1) { sum += __shfl_xor_sync(full_warp, sum, 1); }
  if (valid && (lane & (quarter - 1)) == 0) {
    sums[(second_row ? row_stride : 0) + (second_value ? stride : 0)] = sum;
  }
}

//! The same for one value.
template <class Accumulate>
__device__ __forceinline__ void store_group_sum(Accumulate value, Accumulate* sum_of_span,
                                                int group_shift, bool valid)
{
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const Accumulate sum = butterfly_sum(value, 1 << group_shift);
  if (valid && (lane & ((1 << group_shift) - 1)) == 0) { *sum_of_span = sum; }
}

//! Sums of `count` spans by `lanes` neighbouring lanes, of which this is number `lane`, for Count values that lie `stride` apart;
//! every lane gets them.
template <int Count, class Accumulate>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, Count> sum_spans(
    const Accumulate* sums, int stride, int count, int lane, int lanes)
{
  thread::vector<Accumulate, Count> total{};
#pragma unroll 1
  for (int span = lane; span < count; span += lanes) {
#pragma unroll
    for (int i = 0; i < Count; ++i) { total[i] += sums[i * stride + span]; }
  }
  // The heads' number of lanes is the same in all lanes, so the rounds below do not diverge.
  butterfly_sums(total, lanes);
  return total;
}

}  // namespace block::detail
MHAR_NAMESPACE_END
