// SPDX-License-Identifier: Apache-2.0
//! The warps of gather_tiles that make factors: what every call weighs in every row's gradient.
#pragma once

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
  static constexpr float scale = operand_scales<T>::weight;  //!< of weights and factors

  //! What stays the same from position to position. Calls row and row + 8 of the chunk.
  __device__ __forceinline__ void take_chunk()
  {
    const gather_tensor_params<T>& pass = block_.pass;
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int call = chunk_ * 16 + x * 8 + block_.row;
      known_[x] = call < block_.num_calls() ? call : block_.num_calls() - 1;
      gate_[x] = call < block_.num_calls() ? scale * pass.gate[block_.first_call() + call] : 0.0f;
      logit_gate_[x] =
          call < block_.num_calls() ? pass.logit_gate[block_.first_call() + call] : 0.0f;
      exponent_[x] = logit_gate_[x] == 0 ? 0.0f : 1.0f;
    }
    queries_ = block_.address((chunk_ * 16 + block_.lane % 16) * row_bytes + block_.lane / 16 * 16);
    const int last_call = (min)(16, block_.num_calls() - chunk_ * 16) - 1;
    gradients_ = kept_value((chunk_ * 16 + (min)(block_.lane % 16, last_call)) * row_bytes +
                            block_.lane / 16 * 16);
    factors_ = chunk_ * layout::factor_bytes + block_.lane * 16;
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
    const gather_tensor_params<T>& pass = block_.pass;
    const std::uint32_t slot = block_.slot(slot_index);
    float scores[2][member_tiles][4] = {};
    float products[member_tiles][4] = {};
    float dots[4] = {};
    const bool newest = chunk_ == 0 && block_.has_mix();
    if (newest) { multiply<true>(slot, scores, products, dots); }
    else {
      multiply<false>(slot, scores, products, dots);
    }
    // Registers have no room for them before.
    float lse_of[2];
    float dot_of[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      lse_of[x] = load_float(slot + static_cast<std::uint32_t>(block_.at.lse + known_[x] * 4));
      dot_of[x] = load_float(slot + static_cast<std::uint32_t>(block_.at.dot + known_[x] * 4));
    }
    if (newest) {
      const float found = __shfl_sync(0xffffffffu, dots[0], 0);
      if (known_[0] == 0) { dot_of[0] = found; }
      if (known_[1] == 0) { dot_of[1] = found; }
      if (block_.lane == 0) { pass.dot[block_.head_index(0, block_.first + position)] = found; }
    }

    const std::uint32_t inverse_of = slot + static_cast<std::uint32_t>(block_.at.inverse);
    float sums[member_tiles][2] = {};
    std::uint32_t weight_high[2 * member_tiles];
    std::uint32_t weight_low[2 * member_tiles];
    std::uint32_t factor_high[2 * member_tiles];
    std::uint32_t factor_low[2 * member_tiles];
#pragma unroll
    for (int t = 0; t < MemberTiles; ++t) {
      float inverse[2];
      float scaled[2];  // for scores in base 2
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int m = t * 8 + block_.quad * 2 + e;
        inverse[e] = load_float(inverse_of + static_cast<std::uint32_t>(m * 4));
        scaled[e] = inverse[e] * log2_of_e;
        inverse[e] = m < pass.num_rows ? scale * inverse[e] : 0.0f;  // nothing for dw
      }
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float base = exponent_[x] * lse_of[x] * log2_of_e;
        float weights[2];
        float factors[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float score =
              scaled[e] * join_parts<T>(scores[0][t][2 * x + e], scores[1][t][2 * x + e]);
          const float weight = exp2_approximate(fmaf(exponent_[x], score, -base));
          const float gradient = logit_gate_[x] * weight * (products[t][2 * x + e] - dot_of[x]);
          sums[t][e] = fmaf(gradient, score, sums[t][e]);
          weights[e] = gate_[x] * weight;
          factors[e] = inverse[e] * gradient;
        }
        weight_high[2 * t + x] = make_pair<T>(weights[0], weights[1]);
        factor_high[2 * t + x] = make_pair<bfloat16>(factors[0], factors[1]);
        factor_low[2 * t + x] =
            make_low_pair<bfloat16>(factor_high[2 * t + x], factors[0], factors[1]);
        if constexpr (sizeof(State) == 4) {
          weight_low[2 * t + x] = make_low_pair<T>(weight_high[2 * t + x], weights[0], weights[1]);
        }
      }
    }
    store_head_sums(slot_index, sums);
    if (position >= num_groups) { block_.factors_empty(group.index).wait(group.phase ^ 1); }
    const std::uint32_t to = block_.factors(group.index) + static_cast<std::uint32_t>(factors_);
    store_matrices(to, weight_high);
    store_matrices(to + layout::part_bytes, factor_high);
    store_matrices(to + 2 * layout::part_bytes, factor_low);
    if constexpr (sizeof(State) == 4) { store_matrices(to + 3 * layout::part_bytes, weight_low); }
    block_.factors_full(group.index).arrive();
  }

  //! Sums over the chunk's calls, which the lanes of a column hold: each lane ends with one row.
  __device__ __forceinline__ void store_head_sums(int slot_index,
                                                  float (&sums)[member_tiles][2]) const
  {
    const bool upper = (block_.lane & 16) != 0;
    float pair[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if constexpr (MemberTiles == 2) {
        const float other = __shfl_xor_sync(0xffffffffu, upper ? sums[0][e] : sums[1][e], 16);
        pair[e] = (upper ? sums[1][e] : sums[0][e]) + other;
      }
      else {
        pair[e] = sums[0][e] + __shfl_xor_sync(0xffffffffu, sums[0][e], 16);
      }
    }
    const bool odd = (block_.lane & 8) != 0;
    float sum =
        (odd ? pair[1] : pair[0]) + __shfl_xor_sync(0xffffffffu, odd ? pair[0] : pair[1], 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    const int m = (MemberTiles == 2 && upper ? 8 : 0) + block_.quad * 2 + (odd ? 1 : 0);
    if ((block_.lane & 4) == 0 && (MemberTiles == 2 || !upper)) {
      store_float(block_.slot(slot_index) +
                      static_cast<std::uint32_t>(block_.at.head_sums + (chunk_ * 16 + m) * 4),
                  sum * log_of_2);
    }
  }

  const view& block_;
  int warp_;
  int chunk_ = 0;
  std::uint32_t queries_ = 0;
  int gradients_ = 0;  // this lane's places: in a slot,
  int rows_[static_cast<std::size_t>(MemberTiles)];
  int factors_ = 0;  // and in a group
  int known_[2];
  float gate_[2];
  float logit_gate_[2];
  float exponent_[2];  // of the weight: 0 for a single source, whose weight is 1
  std::uint32_t high_[static_cast<std::size_t>(Resident ? steps : 1)][4];
  std::uint32_t low_[static_cast<std::size_t>(Resident ? steps : 1)][4];
};

}  // namespace block::detail
MHAR_NAMESPACE_END
