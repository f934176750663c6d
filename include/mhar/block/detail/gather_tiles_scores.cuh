// SPDX-License-Identifier: Apache-2.0
//! The warps of gather_tiles that make factors: what every call weighs in every row's gradient.
#pragma once

#include <mhar/block/detail/gather_factors.cuh>
#include <mhar/block/detail/gather_tiles_view.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A warp takes chunks of 16 calls at one position, in turn with the others. Where there are no more
//! chunks than warps, each warp keeps to one chunk, whose queries stay in registers (`Resident`).
template <class T, int HeadWidth, int Warps, bool Resident, int MemberTiles, class State,
          bool Segmented>
class gather_tiles_scores
{
public:
  using view = gather_tiles_view<T, HeadWidth, MemberTiles, State, Segmented>;
  using layout = typename view::layout;

  __device__ __forceinline__ gather_tiles_scores(const view& block, int warp)
      : block_{block}, warp_{warp}
  {
#pragma unroll
    for (int t = 0; t < MemberTiles; ++t) {
      const int m = (min)(t * 8 + block.lane % 8, block.pass.num_rows - 1);
      rows_[t] = kept_value(block.at.rows + m * row_bytes + block.lane / 8 * 16);
    }
  }

  __device__ __forceinline__ void run()
  {
    const int chunks = block_.chunks();
    // Positions at a time: no slot may be passed over.
    const int positions = chunks < Warps ? (min)(Warps / chunks, block_.at.num_slots) : 1;
    const int step = chunks < Warps ? positions * chunks : Warps;
    if (warp_ >= step) { return; }
    int position = warp_ / chunks;
    chunk_ = warp_ % chunks;
    ring_place slot;
    slot.advance_by(position, block_.at.num_slots);
    ring_place group;
    const int num_groups = block_.num_groups();
    group.advance_by(position, num_groups);
    if constexpr (Resident) {
      take_chunk();
      for (; position < block_.count; position += positions) {
        // Other warps take the positions in between. The one that had this slot before may not even
        // have come: then the end of the phase before it would pass for this position's.
        if (positions > 1 && position >= block_.at.num_slots) {
          block_.empty(slot.index).wait(slot.phase ^ 1);
        }
        block_.full(slot.index).wait(slot.phase);
        add_chunk(slot.index, position, group, num_groups);
        slot.advance_by(positions, block_.at.num_slots);
        group.advance_by(positions, num_groups);
      }
    }
    else {
      while (position < block_.count) {
        take_chunk();
        block_.full(slot.index).wait(slot.phase);
        add_chunk(slot.index, position, group, num_groups);
        chunk_ += step;
        while (chunk_ >= chunks) {
          chunk_ -= chunks;
          ++position;
          slot.advance(block_.at.num_slots);
          group.advance(num_groups);
        }
      }
    }
  }

private:
  static constexpr auto member_tiles = static_cast<std::size_t>(MemberTiles);
  static constexpr int row_bytes = view::row_bytes;
  static constexpr int steps = HeadWidth / 16;

  //! What stays the same from position to position. Calls row and row + 8 of the chunk.
  __device__ __forceinline__ void take_chunk()
  {
    factors_.take_chunk(block_, chunk_);
    queries_ = block_.address((chunk_ * 16 + block_.lane % 16) * row_bytes + block_.lane / 16 * 16);
    const int last_call = (min)(16, block_.num_calls() - chunk_ * 16) - 1;
    gradients_ = kept_value((chunk_ * 16 + (min)(block_.lane % 16, last_call)) * row_bytes +
                            block_.lane / 16 * 16);
    place_ = chunk_ * layout::factor_bytes + block_.lane * 16;
    if constexpr (Resident) {
#pragma unroll
      for (int t = 0; t < steps; ++t) {
        load_matrices(high_[t], queries_ + t * 32);
        load_matrices(low_[t], queries_ + block_.at.low_queries + t * 32);
      }
    }
  }

  //! <w, s> and <do, s>; with the newest call's mix, <do, mix> of every call, too.
  template <bool WithMix>
  __device__ __forceinline__ void multiply(std::uint32_t slot, float (&scores)[2][member_tiles][4],
                                           float (&products)[member_tiles][4],
                                           float (&dots)[4]) const
  {
    const std::uint32_t gradients = slot + static_cast<std::uint32_t>(gradients_);
    std::uint32_t rows[member_tiles];
#pragma unroll
    for (int t = 0; t < MemberTiles; ++t) { rows[t] = slot + static_cast<std::uint32_t>(rows_[t]); }
    const std::uint32_t mix =
        slot + static_cast<std::uint32_t>(block_.at.mix + block_.lane / 8 * 16);
#pragma unroll
    for (int step = 0; step < steps / 2; ++step) {
      std::uint32_t b[member_tiles][4];
      std::uint32_t of_mix[4];
#pragma unroll
      for (int t = 0; t < MemberTiles; ++t) { load_matrices(b[t], rows[t] + step * 64); }
      if constexpr (WithMix) { load_matrices(of_mix, mix + step * 64); }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = 2 * step + half;
        std::uint32_t a[4];
        load_matrices(a, gradients + k * 32);
#pragma unroll
        for (int t = 0; t < MemberTiles; ++t) {
          multiply_add_16<T>(products[t], a, b[t][2 * half], b[t][2 * half + 1]);
        }
        if constexpr (WithMix) {
          multiply_add_16<T>(dots, a, of_mix[2 * half], of_mix[2 * half + 1]);
        }
        if constexpr (Resident) {
#pragma unroll
          for (int t = 0; t < MemberTiles; ++t) {
            multiply_add_16<T>(scores[0][t], high_[k], b[t][2 * half], b[t][2 * half + 1]);
            multiply_add_16<T>(scores[1][t], low_[k], b[t][2 * half], b[t][2 * half + 1]);
          }
        }
        else {
          std::uint32_t low[4];
          load_matrices(a, queries_ + k * 32);
          load_matrices(low, queries_ + block_.at.low_queries + k * 32);
#pragma unroll
          for (int t = 0; t < MemberTiles; ++t) {
            multiply_add_16<T>(scores[0][t], a, b[t][2 * half], b[t][2 * half + 1]);
            multiply_add_16<T>(scores[1][t], low, b[t][2 * half], b[t][2 * half + 1]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void add_chunk(int slot_index, int position, const ring_place& group,
                                            int num_groups)
  {
    const std::uint32_t slot = block_.slot(slot_index);
    float scores[2][member_tiles][4] = {};
    float products[member_tiles][4] = {};
    float dots[4] = {};
    const bool newest = chunk_ == 0 && block_.has_mix();
    if (newest) { multiply<true>(slot, scores, products, dots); }
    else {
      multiply<false>(slot, scores, products, dots);
    }
    const auto made =
        factors_.make(block_, slot, block_.first + position, scores, products, newest, dots);
    if (position >= num_groups) { block_.factors_empty(group.index).wait(group.phase ^ 1); }
    const std::uint32_t to = block_.factors(group.index) + static_cast<std::uint32_t>(place_);
    store_matrices(to, made.weights);
    store_matrices(to + layout::part_bytes, made.factors);
    store_matrices(to + 2 * layout::part_bytes, made.factors_low);
    if constexpr (sizeof(State) == 4) {
      store_matrices(to + 3 * layout::part_bytes, made.weights_low);
    }
    block_.factors_full(group.index).arrive();
  }

  const view& block_;
  int warp_;
  int chunk_ = 0;
  std::uint32_t queries_ = 0;
  int gradients_ = 0;  // this lane's places: in a slot,
  int rows_[static_cast<std::size_t>(MemberTiles)];
  int place_ = 0;  // and in a group
  gather_factors<view, MemberTiles, State> factors_;
  std::uint32_t high_[static_cast<std::size_t>(Resident ? steps : 1)][4];
  std::uint32_t low_[static_cast<std::size_t>(Resident ? steps : 1)][4];
};

}  // namespace block::detail
MHAR_NAMESPACE_END
