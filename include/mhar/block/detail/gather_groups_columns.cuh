// SPDX-License-Identifier: Apache-2.0
//! The warpgroup of gather_groups that makes the rows' gradients and dw.
#pragma once

#include <mhar/block/detail/bulk_copy.cuh>
#include <mhar/block/detail/gather_groups_view.cuh>
#include <mhar/block/detail/warpgroup_product.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Products of 64 columns, or 64 calls, at a time: warp w has columns 16w ... 16w + 15 of every 64 of the
//! rows' gradients, and calls 16w ... of dw. Each sum adds its products in the order of gather_tiles_columns.
template <class T, int HeadWidth, int Chunks, bool Segmented>
class gather_groups_columns
{
public:
  using view = gather_groups_view<T, HeadWidth, Chunks, Segmented>;
  using layout = typename view::layout;

  __device__ __forceinline__ explicit gather_groups_columns(const view& block)
      : block_{block}, warp_{static_cast<int>(threadIdx.x / 32 % 4)}, query_sums_{}
  {
    const int line = block.lane / 16 * 8 + block.lane % 8;
    const int vector = warp_ * 2 + block.lane / 8 % 2;
    of_states_ = kept_value(layout::states + line * layout::state_bytes + vector * 16);
    top_ = kept_value(layout::top + (warp_ * 16 + block.row) * 4);
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
#pragma unroll
      for (int t = 0; t < column_tiles; ++t) {
        const int existing = (min)(t * 8 + vector, HeadWidth / 8 - 1);
        load_transposed(queries_[c][t], block.address(layout::vector_place(c * 16 + line, existing,
                                                                           layout::call_tile)));
      }
    }
  }

  __device__ __forceinline__ void run()
  {
    ring_place slot;
    ring_place group;
#pragma unroll 1
    for (int p = 0; p < block_.count; ++p) {
      block_.full(slot.index).wait(slot.phase);
      const std::uint32_t place = block_.slot(slot.index);
      row_sums sums;
#pragma unroll
      for (int t = 0; t < column_tiles; ++t) { take_states(place, t, sums[t]); }
      block_.factors_full(group.index).wait(group.phase);
      multiply(place, block_.factors(group.index), sums);
      block_.factors_empty(group.index).arrive();
#pragma unroll
      for (int t = 0; t < column_tiles; ++t) { leave(place, t, sums[t]); }
      block_.done(slot.index).arrive();
      slot.advance(block_.at.num_slots);
      group.advance(layout::num_groups);
    }
    store_query_sums();
  }

private:
  static constexpr int column_tiles = (HeadWidth + 63) / 64;
  using row_sums = float[static_cast<std::size_t>(column_tiles)][8];

  //! The last tile of 160 columns is half a tile: two warps have none of it.
  [[nodiscard]] __device__ __forceinline__ bool has_columns(int tile) const
  {
    return HeadWidth % 64 == 0 || tile + 1 < column_tiles || warp_ < HeadWidth % 64 / 16;
  }

  __device__ __forceinline__ void multiply(std::uint32_t slot, std::uint32_t factors,
                                           row_sums& sums)
  {
    constexpr int line = layout::line_bytes;
    const auto rows = operand_place::across_lines<line>(
        slot + static_cast<std::uint32_t>(layout::rows), layout::tile_bytes);
    const auto calls = operand_place::across_lines<line>(slot, layout::call_tile);
    const auto across = operand_place::matrices(factors, layout::matrix_bytes, layout::half_bytes);
    const auto along = operand_place::matrices(factors, layout::half_bytes, layout::matrix_bytes);
#pragma unroll
    for (int t = 0; t < column_tiles; ++t) { keep_sums(sums[t]); }
    keep_sums(query_sums_);
    fence_async_proxy();
    begin_products();
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const auto weights = across.after(c * 2 * layout::matrix_bytes);
#pragma unroll
      for (int t = 0; t < column_tiles; ++t) {
        const int place = c * layout::tile_bytes + t * 128 / line * layout::call_tile;
        multiply_across(sums[t], calls.after(place), weights);
        multiply_across(sums[t], queries_[c][t], weights.after(layout::part_bytes));
      }
    }
    multiply_along(query_sums_, along.after(layout::part_bytes), rows);
    multiply_along(query_sums_, along.after(2 * layout::part_bytes), rows);
    end_products();
#pragma unroll
    for (int t = 0; t < column_tiles; ++t) { keep_sums(sums[t]); }
    keep_sums(query_sums_);
  }

  //! Kept gradients, or zero.
  __device__ __forceinline__ void take_states(std::uint32_t slot, int tile, float (&sums)[8]) const
  {
#pragma unroll
    for (float& sum : sums) { sum = 0; }
    if (!block_.kept() || !has_columns(tile)) { return; }
    std::uint32_t states[4];
    load_transposed(states, slot + static_cast<std::uint32_t>(of_states_ + tile * 128));
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      sums[2 * x] = first_of<T>(states[x]);
      sums[2 * x + 1] = second_of<T>(states[x]);
    }
  }

  //! Gradients to keep in their places in the slot, the finished row's in float.
  __device__ __forceinline__ void leave(std::uint32_t slot, int tile, const float (&sums)[8]) const
  {
    if (!has_columns(tile)) { return; }
    if (block_.finishes() && block_.quad == 0) {
      const std::uint32_t top = slot + static_cast<std::uint32_t>(top_ + tile * 256);
      store_float(top, sums[0]);
      store_float(top + 32, sums[2]);
    }
    std::uint32_t values[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) { values[x] = make_pair<T>(sums[2 * x], sums[2 * x + 1]); }
    store_matrices_transposed(slot + static_cast<std::uint32_t>(of_states_ + tile * 128), values);
  }

  //! Adds this block's share of dw to chunk blockIdx.y. What is there of 32 columns is asked for before
  //! the first sum is stored.
  __device__ __forceinline__ void store_query_sums() const
  {
    const gather_tensor_params<T>& pass = block_.pass;
    if (pass.query_sums == nullptr) { return; }
    float* const to = pass.query_sums + block_.first_call() * pass.width +
                      blockIdx.y * pass.chunk_stride + block_.head * HeadWidth + block_.quad * 2;
    const auto place = [&](int first, int x) {
      return reinterpret_cast<float2*>(to + call_of(x) * pass.width + first + x / 2 * 8);
    };
#pragma unroll
    for (int first = 0; first < HeadWidth; first += 32) {
      float2 old[8];
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        old[x] = call_of(x) < block_.num_calls() ? __ldcg(place(first, x)) : make_float2(0, 0);
      }
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const float* const sum = query_sums_ + first / 2 + x * 2;
        if (call_of(x) < block_.num_calls()) {
          *place(first, x) = make_float2(old[x].x + sum[0], old[x].y + sum[1]);
        }
      }
    }
  }
  [[nodiscard]] __device__ __forceinline__ int call_of(int x) const
  {
    return warp_ * 16 + x % 2 * 8 + block_.row;
  }

  const view& block_;
  int warp_;
  int of_states_;  // this lane's places in a slot
  int top_;
  std::uint32_t queries_[static_cast<std::size_t>(Chunks)][static_cast<std::size_t>(column_tiles)]
                        [4];
  float query_sums_[static_cast<std::size_t>(HeadWidth / 2)];
};

}  // namespace block::detail
MHAR_NAMESPACE_END
