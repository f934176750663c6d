// SPDX-License-Identifier: Apache-2.0
//! The warps of gather_groups that make factors.
#pragma once

#include <mhar/block/detail/gather_factors.cuh>
#include <mhar/block/detail/gather_groups_view.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Each keeps to one chunk of 16 calls, whose queries stay in registers, and takes positions in turn with the others. Shared memory
//! answers late while warpgroups read it: what a product needs is loaded `ahead` steps before.
template <class T, int HeadWidth, int Chunks, int Warps, bool Segmented>
class gather_groups_scores
{
public:
  using view = gather_groups_view<T, HeadWidth, Chunks, Segmented>;
  using layout = typename view::layout;

  __device__ __forceinline__ gather_groups_scores(const view& block, int warp)
      : block_{block}, position_{warp / Chunks}, chunk_{warp % Chunks}
  {
    const int line = block.lane % 16;
    const int last_call = (max)((min)(16, block.num_calls() - chunk_ * 16), 1) - 1;
    gradients_ = kept_value(chunk_ * layout::tile_bytes +
                            layout::vector_place((min)(line, last_call), block.lane / 16));
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
      const int m = (min)(t * 8 + block.lane % 8, block.pass.num_rows - 1);
      rows_[t] = kept_value(layout::rows + layout::vector_place(m, block.lane / 8));
    }
    place_ =
        kept_value(block.lane / 16 * layout::half_bytes +
                   (chunk_ * 2 + block.lane / 8 % 2) * layout::matrix_bytes + block.lane % 8 * 16);
    factors_.take_chunk(block, chunk_);
    take_queries();
  }

  __device__ __forceinline__ void run()
  {
    constexpr int positions = Warps / Chunks;  // at a time: less than there are slots
    if (position_ >= positions) { return; }
    ring_place slot;
    slot.advance_by(position_, block_.at.num_slots);
    ring_place group;
    group.advance_by(position_, layout::num_groups);
#pragma unroll 1
    for (; position_ < block_.count; position_ += positions) {
      // Other warps take the positions in between. The one that had this slot before may not even
      // have come: then the end of the phase before it would pass for this position's.
      if (position_ >= block_.at.num_slots) { block_.empty(slot.index).wait(slot.phase ^ 1); }
      block_.full(slot.index).wait(slot.phase);
      add_chunk(block_.slot(slot.index), group);
      slot.advance_by(positions, block_.at.num_slots);
      group.advance_by(positions, layout::num_groups);
    }
  }

private:
  static constexpr int row_tiles = layout::members / 8;
  static constexpr auto member_tiles = static_cast<std::size_t>(row_tiles);
  static constexpr int steps = HeadWidth / 16;
  static constexpr int ahead = HeadWidth > 128 ? 2 : 1;

  //! What products over 32 columns read.
  template <bool WithMix>
  struct operands
  {
    std::uint32_t rows[member_tiles][4];
    std::uint32_t gradients[2][4];
    std::uint32_t mix[WithMix ? 4 : 1];
  };

  __device__ __forceinline__ void take_queries()
  {
    const gather_tensor_params<T>& pass = block_.pass;
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int call = chunk_ * 16 + x * 8 + block_.row;
      const bool exists = call < block_.num_calls();
      const int query = pass.first_call + block_.first_call() + (exists ? call : 0);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const auto* const pairs = reinterpret_cast<const std::uint32_t*>(
            pass.queries.part(part, query) + block_.head * HeadWidth + block_.quad * 2);
#pragma unroll
        for (int k = 0; k < steps; ++k) {
          queries_[part][k][x] = exists ? __ldg(pairs + k * 8) : 0;
          queries_[part][k][2 + x] = exists ? __ldg(pairs + k * 8 + 4) : 0;
        }
      }
    }
  }

  template <bool WithMix>
  __device__ __forceinline__ void load(std::uint32_t slot, int step, operands<WithMix>& to) const
  {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
      load_matrices(to.rows[t], layout::after_vectors(slot + static_cast<std::uint32_t>(rows_[t]),
                                                      4 * step, layout::tile_bytes));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_matrices(to.gradients[half],
                    layout::after_vectors(slot + static_cast<std::uint32_t>(gradients_),
                                          4 * step + 2 * half, layout::call_tile));
    }
    if constexpr (WithMix) {
      load_matrices(to.mix, slot + static_cast<std::uint32_t>(layout::mix + step * 64 +
                                                              block_.lane / 8 * 16));
    }
  }

  //! <w, s> and <do, s>; with the newest call's mix, <do, mix> of every call, too.
  template <bool WithMix>
  __device__ __forceinline__ void multiply(std::uint32_t slot, float (&scores)[2][member_tiles][4],
                                           float (&products)[member_tiles][4],
                                           float (&dots)[4]) const
  {
    operands<WithMix> ring[ahead + 1];
#pragma unroll
    for (int step = 0; step < ahead; ++step) { load(slot, step, ring[step]); }
#pragma unroll
    for (int step = 0; step < steps / 2; ++step) {
      if (step + ahead < steps / 2) {
        load(slot, step + ahead, ring[(step + ahead) % (ahead + 1)]);
      }
      const operands<WithMix>& now = ring[step % (ahead + 1)];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = 2 * step + half;
#pragma unroll
        for (int t = 0; t < row_tiles; ++t) {
          const std::uint32_t(&b)[4] = now.rows[t];
          multiply_add_16<T>(products[t], now.gradients[half], b[2 * half], b[2 * half + 1]);
          multiply_add_16<T>(scores[0][t], queries_[0][k], b[2 * half], b[2 * half + 1]);
          multiply_add_16<T>(scores[1][t], queries_[1][k], b[2 * half], b[2 * half + 1]);
        }
        if constexpr (WithMix) {
          multiply_add_16<T>(dots, now.gradients[half], now.mix[2 * half], now.mix[2 * half + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ void add_chunk(std::uint32_t slot, const ring_place& group) const
  {
    float scores[2][member_tiles][4] = {};
    float products[member_tiles][4] = {};
    float dots[4] = {};
    const bool newest = chunk_ == 0 && block_.has_mix();
    if (newest) { multiply<true>(slot, scores, products, dots); }
    else {
      multiply<false>(slot, scores, products, dots);
    }
    const auto made =
        factors_.make(block_, slot, block_.first + position_, scores, products, newest, dots);
    if (position_ >= layout::num_groups) {
      block_.factors_empty(group.index).wait(group.phase ^ 1);
    }
    const std::uint32_t to = block_.factors(group.index) + static_cast<std::uint32_t>(place_);
    store_matrices(to, made.weights);
    store_matrices(to + layout::part_bytes, made.factors);
    store_matrices(to + 2 * layout::part_bytes, made.factors_low);
    block_.factors_full(group.index).arrive();
  }

  const view& block_;
  int position_;
  int chunk_;
  int gradients_;  // this lane's places: in a slot,
  int rows_[member_tiles];
  int place_;  // and in a group
  gather_factors<view, row_tiles, T> factors_;
  std::uint32_t queries_[2][static_cast<std::size_t>(steps)][4];
};

}  // namespace block::detail
MHAR_NAMESPACE_END
