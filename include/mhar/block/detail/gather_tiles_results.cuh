// SPDX-License-Identifier: Apache-2.0
//! What the column warps of gather_tiles leave in memory: kept gradients of rows, and dw.
#pragma once

#include <mhar/block/detail/gather_tiles_columns.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Stores gradients to keep; the finished row is left to the warp that ends it.
template <class T, int HeadWidth, int Chunks, int Tiles, int MemberTiles, class State,
          bool Segmented>
__device__ __forceinline__ void
gather_tiles_columns<T, HeadWidth, Chunks, Tiles, MemberTiles, State, Segmented>::finish(
    std::uint32_t slot, const float (&sums)[tiles][member_tiles][4])
{
  const gather_tensor_params<T>& pass = block_.pass;
  if (has_top_) {
    const std::uint32_t top = slot + static_cast<std::uint32_t>(top_);
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      store_float(top + t * 64, sums[t][0][0] * (1 / scale));
      store_float(top + t * 64 + 32, sums[t][0][2] * (1 / scale));
    }
  }
  const int first = block_.finishes() ? 1 : 0;
  if (first < pass.num_rows) {
    if constexpr (!Exact) {
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
        std::uint32_t values[2 * member_tiles];
#pragma unroll
        for (int x = 0; x < 2 * MemberTiles; ++x) {
          const float* const sum = &sums[t][x / 2][x % 2 * 2];
          values[x] = make_pair<T>(sum[0] * (1 / scale), sum[1] * (1 / scale));
        }
        store_matrices_transposed(slot + static_cast<std::uint32_t>(of_states_ + t * 32), values);
      }
      __syncwarp();
      const std::uint32_t from = slot + static_cast<std::uint32_t>(staged_);
#pragma unroll
      for (int x = 0; x * rows_at_once < layout::members; ++x) {
        if ((kept_rows_ & 1 << x) != 0) {
          State* to = next_state_ + x * rows_at_once * pass.slot_stride;
          if (Segmented && x == 0 && pass.finishes && block_.lane < vectors) {
            if (pass.row_gradient == nullptr) { continue; }
            to = next_top_;
          }
          store_16_bytes(to, load_16_bytes(from + x * rows_at_once * view::state_bytes));
        }
      }
    }
    else {
#pragma unroll
      for (int x = 0; x < 4 * MemberTiles; ++x) {
        const int m = x / 4 * 8 + block_.quad * 2 + x % 2;
        if (m >= first && m < pass.num_rows) {
#pragma unroll
          for (int t = 0; t < Tiles; ++t) {
            next_state_[m * pass.slot_stride + t * 16 + x % 4 / 2 * 8 + block_.row] =
                sums[t][x / 4][x % 4] * (1 / scale);
          }
        }
      }
    }
  }
  next_state_ += pass.width;
  next_top_ += pass.gradient_stride;
}

//! Adds this block's share of dw to chunk blockIdx.y. All that is there is asked for before the
//! first sum is stored, some chunks of calls at a time.
template <class T, int HeadWidth, int Chunks, int Tiles, int MemberTiles, class State,
          bool Segmented>
__device__ __forceinline__ void gather_tiles_columns<T, HeadWidth, Chunks, Tiles, MemberTiles,
                                                     State, Segmented>::store_query_sums() const
{
  const gather_tensor_params<T>& pass = block_.pass;
  if (pass.query_sums == nullptr) { return; }
  constexpr int at_once = Chunks % 2 == 0 ? 2 : 1;
  constexpr int of_chunk = 8 * Tiles;
  float* const to = pass.query_sums + block_.first_call() * pass.width +
                    blockIdx.y * pass.chunk_stride + block_.head * HeadWidth + column_ + block_.row;
#pragma unroll
  for (int first = 0; first < Chunks; first += at_once) {
    float old[at_once * of_chunk];
#pragma unroll
    for (int x = 0; x < at_once * of_chunk; ++x) {
      const int call = call_of(first, x);
      old[x] = call < block_.num_calls() ? __ldcg(to + place_of(call, x % of_chunk)) : 0.0f;
    }
#pragma unroll
    for (int x = 0; x < at_once * of_chunk; ++x) {
      const int call = call_of(first, x);
      const int y = x % of_chunk;
      if (call < block_.num_calls()) {
        to[place_of(call, y)] =
            old[x] + query_sums_[first + x / of_chunk][y / 8][y / 4 % 2][y % 4] * (1 / scale);
      }
    }
  }
}

}  // namespace block::detail
MHAR_NAMESPACE_END
