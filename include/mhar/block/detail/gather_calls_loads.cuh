// SPDX-License-Identifier: Apache-2.0
//! gather_calls: what it reads, and when.
#pragma once

#include <mhar/block/gather_calls.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::copy_queries()
{
#pragma unroll
  for (int c = 0; c < Calls; ++c) {
    const float* const query = pass_.query + c * pass_.width + head_ * HeadWidth;
    const auto* const image =
        reinterpret_cast<const uint4*>(pass_.queries.image(pass_.first_call + c)) +
        head_ * steps * 4;
#pragma unroll
    for (int n = 0; n < (HeadWidth / 4 + 31) / 32; ++n) {
      const int x = n * 32 + lane_;
      if (x >= HeadWidth / 4) { continue; }
      if (!shares) { detail::copy_async(query_ + c * HeadWidth + x * 4, query + x * 4); }
      detail::copy_async(image_ + c * steps * 4 + x, image + x);
    }
  }
  detail::end_copy_group();
}

//! Pairs of calls, high and low parts, as the second operand of two products that a lane reads at
//! once: column 8*(i/2) + 2j + i%2 of 32 is column i of product j, so that sums lie as rows do.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::pack_queries()
{
  const float* const query = pass_.query + head_ * HeadWidth + row_ / 2 * 8 + row_ % 2;
#pragma unroll
  for (int x = 0; x < 2 * vectors; ++x) {
    std::uint32_t parts[4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int column = x / 2 * 32 + x % 2 * 4 + n * 2;
      const float first = 2 * quad_ < Calls ? query[2 * quad_ * pass_.width + column] : 0.0f;
      const float second =
          2 * quad_ + 1 < Calls ? query[(2 * quad_ + 1) * pass_.width + column] : 0.0f;
      parts[2 * n] = detail::make_pair<bfloat16>(first, second);
      parts[2 * n + 1] = detail::make_low_pair<bfloat16>(parts[2 * n], first, second);
    }
    reinterpret_cast<uint4*>(query_)[x * 32 + lane_] =
        make_uint4(parts[0], parts[1], parts[2], parts[3]);
  }
}

//! A warp copies its head's part of all calls but the first, whole lines of a position.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::copy_gradients()
{
  constexpr int pieces = HeadWidth / 8;
  __syncwarp();
#pragma unroll
  for (int x = lane_; x < 8 * pieces; x += 32) {
    const int i = x / pieces;
    const int v = x % pieces;
    const std::int64_t position = (min)(tile_ * 8 + i, pass_.num_positions - 1);
    const T* from =
        pass_.call_gradients + position * pass_.call_position_stride + head_ * HeadWidth + v * 8;
    const std::uint32_t to = detail::shared_address(query_sums_) + i * line + v * 16;
#pragma unroll
    for (int c = 1; c < Calls; ++c) {
      detail::copy_async(to + (c - 1) * 8 * line, from + c * pass_.call_stride);
    }
  }
  detail::end_copy_group();
}

//! What was there before the last pass: the top row, and all calls but the first.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
template <bool Early>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::load_old()
{
  load<Early>(row_values_, row_of(0));
  inverse_ = load_float<Early>(pass_.inverse_rms + position_);
#pragma unroll
  for (int c = 1; c < Calls; ++c) {
    if constexpr (!shares) { load<Early>(gradients_[c], gradient_of(c)); }
    lse_[c] = load_float<Early>(pass_.lse + head_index(c));
  }
  if constexpr (shares) { copy_gradients(); }
}

//! What may be new beside vectors: lse of the first call, D but for the newest's, kept head sums.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::load_numbers()
{
  lse_[0] = pass_.lse[head_index(0)];
#pragma unroll
  for (int c = 0; c < Calls; ++c) {
    if (c > 0 || pass_.mix == nullptr) { dot_[c] = pass_.dot[head_index(c)]; }
  }
  top_sum_ = kept_sum(0);
  own_sum_ = kept_sum((min)(first_kept() + head_, pass_.num_rows - 1));
}

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::load_row(int m)
{
  load<false>(row_values_, row_of(m));
  if (pass_.kept) { state_.load(state_of(m)); }
  inverse_ = pass_.inverse_rms[position_ - m * pass_.num_positions];
}

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::load_mix(
    detail::state_vectors<T, vectors>& mix) const
{
  if (pass_.mix == nullptr) { return; }
  mix.load(pass_.mix + position_ * pass_.mix_position_stride + column_);
}

//! A position's lanes ask for lines of what this head has of it.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::ask_for(
    const void* from, int bytes) const
{
  for (int at = quad_ * 128; at < bytes + 112; at += 512) {
    detail::prefetch_to_l2(static_cast<const char*>(from) + (min)(at, bytes - 16));
  }
}

//! What is not read early of the first call and the first rows.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::ask_for_tile()
    const
{
  constexpr int row_bytes = HeadWidth * 2;
  constexpr int state_bytes = HeadWidth * static_cast<int>(sizeof(State));
  const int back = quad_ * 8;  // from this lane's columns to the head's
  ask_for(gradient_of(0) - back, row_bytes);
  if (pass_.mix != nullptr) {
    ask_for(pass_.mix + position_ * pass_.mix_position_stride + column_ - back, row_bytes);
  }
  if (!pass_.reads_early) { ask_for(row_of(0) - back, row_bytes); }
  if (pass_.kept && !reads_state_early()) { ask_for(state_of(0) - back, state_bytes); }
  if (pass_.num_rows > 1) {
    ask_for(row_of(1) - back, row_bytes);
    if (pass_.kept) { ask_for(state_of(1) - back, state_bytes); }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
