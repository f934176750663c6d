// SPDX-License-Identifier: Apache-2.0
//! advance_tiles: a new row is asked for, and its inverse rms found.
#pragma once

#include <mhar/block/advance_tiles.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! A position per warp, a line of 128 bytes per lane.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::prefetch_new_row() const
{
  for (int p = threadIdx.x / 32; p < count_; p += blockDim.x / 32) {
    const T* const row =
        pass_.rows + (pass_.num_rows - 1) * pass_.row_stride + (first_ + p) * pass_.position_stride;
    for (int k = lane_ * 64; k < pass_.width; k += 32 * 64) { detail::prefetch_to_l2(row + k); }
  }
}

//! Squares of eight positions of a head at a time, over the lanes. The scaled sum serves rows whose
//! squares overflow; where a lane's do not, it is a power of two times the other.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::sum_new_squares()
{
  constexpr float scale = thread::overflow_scale<float>;
  auto* const squares = reinterpret_cast<float*>(shared_ + at_.squares);
  const int scaled_squares = pass_.positions_per_block * pass_.num_heads;
  unit at;  // eight positions count as one
  at.start(threadIdx.x / 32, pass_.num_heads);
#pragma unroll 1
  for (; at.position * 8 < count_; at.step(blockDim.x / 32, pass_.num_heads)) {
    const int head = at.head;
    const int p = at.position * 8 + row_;
    const T* const row = pass_.rows + (pass_.num_rows - 1) * pass_.row_stride +
                         (first_ + (min)(p, count_ - 1)) * pass_.position_stride +
                         head * HeadWidth + quad_ * 8;
    uint4 values[static_cast<std::size_t>(tile::groups)];
#pragma unroll
    for (int u = 0; u < tile::groups; ++u) { values[u] = detail::load_vector(row + u * 32); }
    float sum = 0;
#pragma unroll
    for (int u = 0; u < tile::groups; ++u) { sum = detail::add_squares<T>(values[u], 1.0f, sum); }
    float scaled = sum * scale * scale;
    if (thread::overflowed(sum)) {
      scaled = 0;
#pragma unroll
      for (int u = 0; u < tile::groups; ++u) {
        scaled = detail::add_squares<T>(values[u], scale, scaled);
      }
    }
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      scaled += __shfl_xor_sync(0xffffffffu, scaled, distance);
    }
    if (quad_ == 0 && p < count_) {
      squares[p * pass_.num_heads + head] = sum;
      squares[scaled_squares + p * pass_.num_heads + head] = scaled;
    }
  }
}

//! Heads in order. By one warp, for which the others wait when their last tile is due.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::find_new_inverse_rms()
{
  const auto* const squares = reinterpret_cast<const float*>(shared_ + at_.squares);
  const int scaled_squares = pass_.positions_per_block * pass_.num_heads;
  for (int p = lane_; p < count_; p += 32) {
    float sum = 0;
    float scaled = 0;
    for (int h = 0; h < pass_.num_heads; ++h) {
      sum += squares[p * pass_.num_heads + h];
      scaled += squares[scaled_squares + p * pass_.num_heads + h];
    }
    const float inverse = detail::row_inverse_rms(sum, scaled, pass_.inverse_width, pass_.eps);
    new_inverse_rms()[p] = inverse;
    if (first_call_ == 0) {
      pass_.inverse_rms[(pass_.num_rows - 1) * pass_.num_positions + first_ + p] = inverse;
    }
  }
  found().arrive();
}

}  // namespace block
MHAR_NAMESPACE_END
