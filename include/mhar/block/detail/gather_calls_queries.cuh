// SPDX-License-Identifier: Apache-2.0
//! gather_calls: the gradients of the queries, summed on chip and added to the block's chunk.
#pragma once

#include <mhar/block/gather_calls.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! What other passes have left in this block's chunk, nothing of a call that none has read: this
//! one adds to it on chip.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::copy_query_sums()
{
  if (pass_.query_sums != nullptr) {
#pragma unroll
    for (int c = 0; c < Calls; ++c) {
#pragma unroll
      for (int n = 0; n < (HeadWidth / 4 + 31) / 32; ++n) {
        const int x = n * 32 + lane_;
        if (x >= HeadWidth / 4) { continue; }
        float* const to = query_sums_ + c * HeadWidth + x * 4;
        if (c == 0 && pass_.first_unread) {
          *reinterpret_cast<float4*>(to) = make_float4(0, 0, 0, 0);
          continue;
        }
        detail::copy_async(to, query_sums_of(c) + x);
      }
    }
  }
  detail::end_copy_group();
}

//! dw: positions are what is summed over, so the row is transposed, eight columns at a time.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::add_to_queries(
    std::uint32_t high, std::uint32_t low)
{
  detail::wait_for_copy_groups<Ahead ? 1 : 0>();  // all but what is copied ahead
  __syncwarp();
  if constexpr (shares) {
#pragma unroll
    for (int u = 0; u < vectors; ++u) { multiply_row(u, high, low, sums_[u]); }
  }
  else {
    // All products first, then what they are added to: a place belongs to one lane.
    float sums[static_cast<std::size_t>(vectors)][2][4] = {};
#pragma unroll
    for (int u = 0; u < vectors; ++u) { multiply_row(u, high, low, sums[u]); }
    leave_sums<true>(sums);
  }
}

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::multiply_row(
    int u, std::uint32_t high, std::uint32_t low, float (&sums)[2][4]) const
{
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const std::uint32_t a0 = detail::transpose(detail::pair_of(row_values_[u], 2 * e));
    const std::uint32_t a1 = detail::transpose(detail::pair_of(row_values_[u], 2 * e + 1));
    const std::uint32_t wide0 = detail::make_wide_pair<T>(a0);
    const std::uint32_t wide1 = detail::make_wide_pair<T>(a1);
    detail::multiply_add_8<bfloat16>(sums[e], wide0, wide1, high);
    detail::multiply_add_8<bfloat16>(sums[e], wide0, wide1, low);
    if constexpr (detail::has_wide_rest<T>) {
      detail::multiply_add_8<bfloat16>(sums[e], detail::make_wide_rest(a0, wide0),
                                       detail::make_wide_rest(a1, wide1), high);
    }
  }
}

//! Puts, or adds, what products have summed to its place in shared memory.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
template <bool Adds>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::leave_sums(
    const float (&sums)[static_cast<std::size_t>(vectors)][2][4])
{
  if (2 * quad_ >= Calls) { return; }
  float* const to = query_sums_ + 2 * quad_ * HeadWidth + row_ / 2 * 8 + row_ % 2;
#pragma unroll
  for (int c = 0; c < (Calls < 2 ? 1 : 2); ++c) {  // of the lane's two
    if (c > 0 && 2 * quad_ + 1 >= Calls) { continue; }
#pragma unroll
    for (int x = 0; x < 4 * vectors; ++x) {
      float& place = to[c * HeadWidth + x / 4 * 32 + x % 4 * 2];
      const float sum = sums[x / 4][x % 4 / 2][x % 2 * 2 + c];
      place = Adds ? place + sum : sum;
    }
  }
}

//! With gradients in shared memory sums come from registers, and meet what the chunk holds only here.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::store_query_sums()
{
  if (pass_.query_sums == nullptr) { return; }
  __syncwarp();
  if constexpr (shares) {
    leave_sums<false>(sums_);
    __syncwarp();
  }
#pragma unroll
  for (int c = 0; c < Calls; ++c) {
#pragma unroll
    for (int n = 0; n < (HeadWidth / 4 + 31) / 32; ++n) {
      const int x = n * 32 + lane_;
      if (x >= HeadWidth / 4) { continue; }
      float4 sum = *reinterpret_cast<const float4*>(query_sums_ + c * HeadWidth + x * 4);
      if (shares && (c > 0 || !pass_.first_unread)) {
        const float4 before = query_sums_of(c)[x];
        sum = make_float4(before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w);
      }
      query_sums_of(c)[x] = sum;
    }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
