// SPDX-License-Identifier: Apache-2.0
//! gather_calls: the next row or tile is copied to shared memory while one is worked on.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/shared_memory.cuh>
#include <mhar/block/gather_calls.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::copy_vectors(
    int place, const void* from) const
{
#pragma unroll
  for (int u = 0; u < vectors; ++u) {
    detail::copy_async(ahead_ + (place + u) * piece, static_cast<const char*>(from) + u * 64);
  }
}

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::copy_number(
    int index, const float* from) const
{
  detail::copy_async_4(ahead_ + (numbers_ahead + index / 4) * piece + index % 4 * 4, from);
}

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::take(
    uint4 (&to)[static_cast<std::size_t>(vectors)], int place) const
{
#pragma unroll
  for (int u = 0; u < vectors; ++u) { to[u] = detail::load_shared(ahead_ + (place + u) * piece); }
}

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ float gather_calls<T, HeadWidth, Calls, State, Ahead>::number(
    int index) const
{
  return detail::load_float(ahead_ + (numbers_ahead + index / 4) * piece + index % 4 * 4);
}

//! Row m of this tile, or the next tile behind its last row, as one group; an empty one behind the
//! block's last row.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::copy_ahead(
    int m, std::int64_t tiles) const
{
  if (m < pass_.num_rows) { copy_row(m, position_); }
  else if (tile_ + gridDim.x < tiles) {
    const std::int64_t position = (tile_ + gridDim.x) * 8 + row_;
    copy_tile(position < pass_.num_positions ? position : pass_.num_positions - 1);
  }
  detail::end_copy_group();
}

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::copy_row(
    int m, std::int64_t position) const
{
  copy_vectors(0, row_of(m, position));
  if (pass_.kept) { copy_vectors(vectors, state_of(m, position)); }
  copy_number(0, pass_.inverse_rms + position - m * pass_.num_positions);
}

//! Numbers: inverse rms, the two kept head sums, lse and D of every call.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::copy_tile(
    std::int64_t position) const
{
  copy_row(0, position);
  if (pass_.mix != nullptr) {
    copy_vectors(mix_ahead, pass_.mix + position * pass_.mix_position_stride + column_);
  }
  const T* const gradients = pass_.call_gradients + position * pass_.call_position_stride + column_;
  const std::int64_t index = position * pass_.num_heads + head_;
  const std::int64_t stride = pass_.num_positions * pass_.num_heads;
#pragma unroll
  for (int c = 0; c < Calls; ++c) {
    copy_vectors(gradients_ahead + c * vectors, gradients + c * pass_.call_stride);
    copy_number(3 + 2 * c, pass_.lse + index + c * stride);
    if (c > 0 || pass_.mix == nullptr) { copy_number(4 + 2 * c, pass_.dot + index + c * stride); }
  }
  if (pass_.kept) {
    const int own = (min)(first_kept() + head_, pass_.num_rows - 1);
    copy_number(1, pass_.head_sums + position);
    copy_number(2, pass_.head_sums + own * pass_.num_positions + position);
  }
}

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::take_row()
{
  detail::wait_for_copy_groups<0>();
  take(row_values_, 0);
  if (pass_.kept) { take(state_.values, vectors); }
  inverse_ = number(0);
}

template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::take_tile(
    detail::state_vectors<T, vectors>& mix)
{
  take_row();
  if (pass_.mix != nullptr) { take(mix.values, mix_ahead); }
#pragma unroll
  for (int c = 0; c < Calls; ++c) {
    take(gradients_[c], gradients_ahead + c * vectors);
    lse_[c] = number(3 + 2 * c);
    if (c > 0 || pass_.mix == nullptr) { dot_[c] = number(4 + 2 * c); }
  }
  if (pass_.kept) {
    top_sum_ = number(1);
    own_sum_ = number(2);
  }
}

}  // namespace block
MHAR_NAMESPACE_END
