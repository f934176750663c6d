// SPDX-License-Identifier: Apache-2.0
//! Factors of a backward pass over many calls: what every call weighs in every row's gradient.
#pragma once

#include <mhar/block/detail/gather_view.cuh>
#include <mhar/block/detail/operand_scales.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Of a chunk of 16 calls and all rows of a position, as a warp has them: a lane has calls row and row + 8, and rows
//! 2*quad, 2*quad + 1 of every eight.
template <class View, int MemberTiles, class State>
class gather_factors
{
public:
  using T = typename View::element;
  static constexpr auto member_tiles = static_cast<std::size_t>(MemberTiles);

  //! Operands, two rows in a register; [2*t + x] is of rows 8t ... and call row + 8x.
  struct operands
  {
    std::uint32_t weights[2 * member_tiles];  //!< alpha a
    std::uint32_t weights_low[2 * member_tiles];
    std::uint32_t factors[2 * member_tiles];  //!< r dl
    std::uint32_t factors_low[2 * member_tiles];
  };

  //! What stays the same from position to position. Calls that do not exist have a gate of 0,
  //! and no lse that could be infinite.
  __device__ __forceinline__ void take_chunk(const View& block, int chunk)
  {
    chunk_ = chunk;
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int call = chunk * 16 + x * 8 + block.row;
      const bool exists = call < block.num_calls();
      known_[x] = exists ? call : -1;
      gate_[x] = exists ? scale * block.pass.gate[block.first_call() + call] : 0.0f;
      logit_gate_[x] = exists ? block.pass.logit_gate[block.first_call() + call] : 0.0f;
      exponent_[x] = logit_gate_[x] == 0 ? 0.0f : 1.0f;
    }
  }

  //! From <w, s>, in parts, and <do, s>; `dots`, where `newest`, has <do, mix> of the newest call, whose D is stored. The chunk's
  //! part of the head sums goes to the slot.
  __device__ __forceinline__ operands make(const View& block, std::uint32_t slot,
                                           std::int64_t position,
                                           const float (&scores)[2][member_tiles][4],
                                           const float (&products)[member_tiles][4], bool newest,
                                           const float (&dots)[4]) const
  {
    // Registers have no room for them before.
    float lse_of[2];
    float dot_of[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int place = (max)(known_[x], 0) * 4;
      lse_of[x] = load_float(slot + static_cast<std::uint32_t>(block.at.lse + place));
      dot_of[x] = load_float(slot + static_cast<std::uint32_t>(block.at.dot + place));
      if (known_[x] < 0) { lse_of[x] = dot_of[x] = 0; }
    }
    if (newest) {
      const float found = __shfl_sync(0xffffffffu, dots[0], 0);
      if (known_[0] == 0) { dot_of[0] = found; }
      if (known_[1] == 0) { dot_of[1] = found; }
      if (block.lane == 0) { block.pass.dot[block.head_index(0, position)] = found; }
    }

    const std::uint32_t inverse_of = slot + static_cast<std::uint32_t>(block.at.inverse);
    float sums[member_tiles][2] = {};
    operands result;
#pragma unroll
    for (int t = 0; t < MemberTiles; ++t) {
      float inverse[2];
      float scaled[2];  // for scores in base 2
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int m = t * 8 + block.quad * 2 + e;
        inverse[e] = load_float(inverse_of + static_cast<std::uint32_t>(m * 4));
        scaled[e] = inverse[e] * log2_of_e;
        inverse[e] = m < block.pass.num_rows ? scale * inverse[e] : 0.0f;  // nothing for dw
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
        const int at = 2 * t + x;
        result.weights[at] = make_pair<T>(weights[0], weights[1]);
        result.factors[at] = make_pair<bfloat16>(factors[0], factors[1]);
        result.factors_low[at] =
            make_low_pair<bfloat16>(result.factors[at], factors[0], factors[1]);
        if constexpr (sizeof(State) == 4) {
          result.weights_low[at] = make_low_pair<T>(result.weights[at], weights[0], weights[1]);
        }
      }
    }
    store_head_sums(block, slot, sums);
    return result;
  }

private:
  static constexpr float scale = operand_scales<T>::weight;  //!< of weights and factors

  //! Sums over the chunk's calls, which the lanes of a column hold: each lane ends with one row.
  __device__ __forceinline__ void store_head_sums(const View& block, std::uint32_t slot,
                                                  const float (&sums)[member_tiles][2]) const
  {
    const bool upper = (block.lane & 16) != 0;
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
    const bool odd = (block.lane & 8) != 0;
    float sum =
        (odd ? pair[1] : pair[0]) + __shfl_xor_sync(0xffffffffu, odd ? pair[0] : pair[1], 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    const int m = (MemberTiles == 2 && upper ? 8 : 0) + block.quad * 2 + (odd ? 1 : 0);
    if ((block.lane & 4) == 0 && (MemberTiles == 2 || !upper)) {
      store_float(slot + static_cast<std::uint32_t>(block.at.head_sums + (chunk_ * 16 + m) * 4),
                  sum * log_of_2);
    }
  }

  int chunk_ = 0;
  int known_[2];  // the calls, or -1
  float gate_[2];
  float logit_gate_[2];
  float exponent_[2];  // of the weight: 0 for a single source, whose weight is 1
};

}  // namespace block::detail
MHAR_NAMESPACE_END
