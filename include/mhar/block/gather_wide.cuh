// SPDX-License-Identifier: Apache-2.0
//! A backward pass over wide heads: a warp holds eight rows and eight calls' gradients of a
//! position and head, or of a piece of it, in registers, and all products read them from there.
#pragma once

#include <mhar/block/detail/head_sums.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/detail/wide_parameters.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! A cluster of the heads per range of positions, which its teams take in turns (warp_place).
//! Lane 4*i + q holds columns 8q ... 8q+7 of every 32 of row i and of the gradient of call i: as
//! they are, operands of the products over columns; with 8 x 8 pieces transposed, of those over
//! rows (dw) and over calls (ds). Sums over heads are sent around the cluster while dw is added up;
//! every warp adds to a copy of dw of its own in shared memory, and the block adds the copies in
//! order. Of a split head the next position comes in while this one is stored.
//!
//! Threads      max_threads; of a split head 32 per piece and team
//! Barriers     two, and one over the cluster
//! Shared       shared_bytes
//! Numerics     a position's bits do not depend on the number of rows
template <class T, int Width, class State, bool Split>
class gather_wide
{
public:
  using piece_sums = detail::piece_sums<4, false>;
  using head_sums = detail::head_sums<Split>;
  static constexpr int max_threads = Split ? 512 : 256;
  static constexpr int max_calls = 8;

  //! Queries in their parts, a copy of dw per warp; per team head sums on their way, their barriers,
  //! and sums over pieces.
  [[nodiscard]] static constexpr int shared_bytes(int teams, int pieces, int spread)
  {
    return pieces * query_bytes + teams * pieces * sum_vectors * 16 + head_sums::bytes(teams) +
           (Split ? teams * piece_sums::bytes(pieces * spread) : 0);
  }

  __device__ __forceinline__ gather_wide(const gather_wide_params<T>& pass, unsigned char* shared)
      : pass_{pass},
        place_{pass.pieces, pass.spread},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4},
        head_{place_.head()},
        column_{std::int64_t{place_.unit()} * Width + quad_ * 8},
        queries_{shared + place_.piece * query_bytes},
        sums_{reinterpret_cast<float4*>(shared + place_.pieces * query_bytes)},
        heads_{place_, pass.num_heads, reinterpret_cast<float*>(sums_ + num_warps() * sum_vectors)}
  {
  }

  //! After the kernels in front have ended.
  __device__ __forceinline__ void run()
  {
    detail::load_queries_of_wide_heads<Width>(pass_, place_, queries_ - place_.piece * query_bytes);
    for (int x = static_cast<int>(threadIdx.x); x < num_warps() * sum_vectors;
         x += static_cast<int>(blockDim.x)) {
      sums_[x] = make_float4(0, 0, 0, 0);
    }
    if (place_.piece == 0 && lane_ == 0) {
      heads_.start();
      if constexpr (Split) { pieces().start(); }
    }
    __syncthreads();
    detail::arrive_at_cluster();
    detail::wait_for_cluster();
    gate_ = row_ < pass_.num_calls ? pass_.gate[row_] : 0.0f;
    logit_gate_ = row_ < pass_.num_calls ? pass_.logit_gate[row_] : 0.0f;
    const int teams = place_.num_teams();
    const std::int64_t last = pass_.num_positions * (blockIdx.y + 1) / gridDim.y;
    std::int64_t position = pass_.num_positions * blockIdx.y / gridDim.y + place_.team;
    if (Split && position < last) { load(position); }
    for (int round = 0; position < last; position += teams, ++round) {
      if constexpr (!Split) { load(position); }
      gather(position, round, position + teams < last ? position + teams : -1);
    }
    __syncthreads();
    detail::store_query_sums_of_wide_heads<Width>(pass_, place_, sums_);
    // A block whose shared memory others may still write to must not end.
    detail::arrive_at_cluster();
    detail::wait_for_cluster();
  }

private:
  static constexpr int vectors = Width / 32;
  static constexpr int part_bytes = max_calls * Width * 2;
  static constexpr int query_bytes = detail::packed_queries<T>::num_parts * part_bytes;
  static constexpr float scale = detail::operand_scales<T>::weight;  // of sums for rows' gradients
  static constexpr int sum_vectors = max_calls * Width / 4;

  [[nodiscard]] __device__ __forceinline__ int num_warps() const
  {
    return static_cast<int>(blockDim.x / 32);
  }
  [[nodiscard]] __device__ __forceinline__ piece_sums pieces() const
  {
    return {place_, detail::shared_address(sums_ + num_warps() * sum_vectors) +
                        static_cast<unsigned>(head_sums::bytes(place_.num_teams()))};
  }

  [[nodiscard]] __device__ __forceinline__ State* state_of(std::int64_t position) const
  {
    return static_cast<State*>(pass_.states) + row_ * pass_.slot_stride + position * pass_.width +
           column_;
  }
  [[nodiscard]] __device__ __forceinline__ const T* row_of(std::int64_t position) const
  {
    return pass_.rows + row_ * pass_.row_stride + position * pass_.position_stride + column_;
  }
  [[nodiscard]] __device__ __forceinline__ const T* gradient_of(std::int64_t position) const
  {
    return pass_.call_gradients + row_ * pass_.call_stride + position * pass_.call_position_stride +
           column_;
  }

  __device__ __forceinline__ void load(std::int64_t position)
  {
    const T* const row = row_of(position);
#pragma unroll
    for (int u = 0; u < vectors; ++u) { load_row(row, u); }
    const T* const gradient = gradient_of(position);
#pragma unroll
    for (int u = 0; u < vectors; ++u) { load_gradient(gradient, u); }
    load_numbers(position);
  }
  //! From a pointer that is found once: found for every vector it costs instructions.
  __device__ __forceinline__ void load_row(const T* row, int u)
  {
    rows_[u] = row_ < pass_.num_rows ? detail::load_vector(row + u * 32) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void load_gradient(const T* gradient, int u)
  {
    gradients_[u] =
        row_ < pass_.num_calls ? detail::load_vector(gradient + u * 32) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void load_numbers(std::int64_t position)
  {
    const int call = (min)(row_, pass_.num_calls - 1);
    const std::int64_t at = (call * pass_.num_positions + position) * pass_.num_heads + head_;
    lse_ = pass_.lse[at];
    dot_ = pass_.dot[at];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int m = (min)(quad_ * 2 + e, pass_.num_rows - 1);
      inverse_[e] = pass_.inverse_rms[position - m * pass_.num_positions];
    }
  }

  //! `next` is the position that comes in while this one is stored; negative for none.
  __device__ __forceinline__ void gather(std::int64_t position, int round, std::int64_t next)
  {
    heads_.expect(round);
    // What lane m adds the heads' sums of row m to.
    float kept_sum = 0;
    if (pass_.kept && needs_sum_of(lane_)) {
      kept_sum = pass_.head_sums[lane_ * pass_.num_positions + position];
    }
    float weights[2];
    float factors[2];
    float own_sums[2];
    find_factors(round, weights, factors, own_sums);
    heads_.send(round, own_sums);
    const float inverse = __shfl_sync(0xffffffffu, inverse_[0], 0);
    if (Split && next >= 0) { load_numbers(next); }
    add_to_queries(position, factors, next);
    const float total = heads_.add_to(kept_sum, round, own_sums, pass_.num_rows);
    if (keeps_sum_of(lane_)) { pass_.head_sums[lane_ * pass_.num_positions + position] = total; }
    const float correction = -__shfl_sync(0xffffffffu, total * inverse, 0) * pass_.inverse_width;
    store_rows(position, weights, factors, correction, inverse, next);
  }

  //! Lane 4*i + q: alpha * a and r * dl of call i and rows 2q, 2q + 1, and their sums of dl * u.
  __device__ __forceinline__ void find_factors(int round, float (&weights)[2], float (&factors)[2],
                                               float (&row_sums)[2])
  {
    float scores[4] = {0, 0, 0, 0};
    float products[4] = {0, 0, 0, 0};
    const std::uint32_t queries = detail::shared_address(queries_) + lane_ * 16;
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      std::uint32_t high[4];
      std::uint32_t low[4];
      detail::load_matrices(high, queries + u * 512);
      detail::load_matrices(low, queries + part_bytes + u * 512);
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const std::uint32_t b0 = detail::pair_of(rows_[u], 2 * v);
        const std::uint32_t b1 = detail::pair_of(rows_[u], 2 * v + 1);
        detail::multiply_add_16<T>(scores, high[2 * v], low[2 * v], high[2 * v + 1], low[2 * v + 1],
                                   b0, b1);
        detail::multiply_add_16<T>(products, detail::pair_of(gradients_[u], 2 * v), 0u,
                                   detail::pair_of(gradients_[u], 2 * v + 1), 0u, b0, b1);
      }
    }
    float added[4] = {detail::join_parts<T>(scores, 0), detail::join_parts<T>(scores, 1),
                      products[0], products[1]};
    if constexpr (Split) {
      pieces().send(round, added);
      static_cast<void>(pieces().add(round, added));
    }
    const bool single = logit_gate_ == 0;
    const bool none = lse_ == detail::minus_infinity<float>();
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool counts = row_ < pass_.num_calls && quad_ * 2 + e < pass_.num_rows && !none;
      const float score = inverse_[e] * added[e];
      const float weight =
          single ? 1.0f : detail::exp2_approximate((score - lse_) * detail::log2_of_e);
      const float gradient =
          counts && !single && weight != 0 ? logit_gate_ * weight * (added[2 + e] - dot_) : 0.0f;
      weights[e] = counts && weight != 0 ? gate_ * weight : 0.0f;
      factors[e] = inverse_[e] * gradient;
      row_sums[e] = gradient * (counts ? score : 0.0f);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        row_sums[e] += __shfl_xor_sync(0xffffffffu, row_sums[e], offset);
      }
    }
  }

  //! One warp of the cluster keeps the head sum of row m.
  [[nodiscard]] __device__ __forceinline__ bool keeps_sum_of(int m) const
  {
    return m < pass_.num_rows && m % pass_.num_heads == head_ && (!Split || place_.is_first()) &&
           !(pass_.finishes && m == 0);
  }
  [[nodiscard]] __device__ __forceinline__ bool needs_sum_of(int m) const
  {
    return keeps_sum_of(m) || (pass_.finishes && m == 0);
  }

  //! dw of the warp's copy, and the kept states of the rows, or the next rows, into the registers
  //! that this frees.
  __device__ __forceinline__ void add_to_queries(std::int64_t position, const float (&factors)[2],
                                                 std::int64_t next)
  {
    const std::uint32_t high = detail::make_pair<bfloat16>(factors[0], factors[1]);
    const std::uint32_t low = detail::make_low_pair<bfloat16>(high, factors[0], factors[1]);
    float4* const sums = sums_ + threadIdx.x / 32 * sum_vectors + lane_;
    const State* const state = state_of(position);
    const T* const next_row = row_of(next);
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      float added[8];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float pair[4] = {0, 0, 0, 0};
        detail::multiply_factors<T>(pair, high, low,
                                    detail::transpose(detail::pair_of(rows_[u], e)));
        added[2 * e] = pair[0] + pair[2];
        added[2 * e + 1] = pair[1] + pair[3];
      }
      if constexpr (sizeof(State) == 2) {
        if (pass_.kept && row_ < pass_.num_rows) { rows_[u] = detail::load_vector(state + u * 32); }
      }
      if (Split && next >= 0 && !holds_states()) { load_row(next_row, u); }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4 sum = sums[(2 * u + half) * 32];
        sum.x += added[4 * half];
        sum.y += added[4 * half + 1];
        sum.z += added[4 * half + 2];
        sum.w += added[4 * half + 3];
        sums[(2 * u + half) * 32] = sum;
      }
    }
  }

  //! A + r B of all rows, and for a finished row the norm's part.
  __device__ __forceinline__ void store_rows(std::int64_t position, const float (&weights)[2],
                                             const float (&factors)[2], float correction,
                                             float inverse, std::int64_t next)
  {
    // First operands: rows by calls.
    const detail::transposed_parts<T> weight{scale * weights[0], scale * weights[1]};
    const detail::transposed_parts<bfloat16> factor{scale * factors[0], scale * factors[1]};
    const std::uint32_t queries =
        detail::shared_address(queries_) + query_bytes - 2 * part_bytes + lane_ * 16;
    const bool is_finished = pass_.finishes && row_ == 0;
    State* const state = state_of(position);
    const T* const next_row = row_of(next);
    const T* const next_gradient = gradient_of(next);
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      std::uint32_t high[4];
      std::uint32_t low[4];
      detail::load_transposed(high, queries + u * 512);
      detail::load_transposed(low, queries + part_bytes + u * 512);
      float values[8];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float sums[4] = {0, 0, 0, 0};
        detail::add_row_gradient<T>(sums, weight, factor,
                                    detail::transpose(detail::pair_of(gradients_[u], e)), high[e],
                                    low[e]);
        values[2 * e] = (sums[0] + sums[2]) * (1 / scale);
        values[2 * e + 1] = (sums[1] + sums[3]) * (1 / scale);
      }
      if (Split && next >= 0) { load_gradient(next_gradient, u); }
      // No branch around the products: all lanes take part in them.
      if (row_ < pass_.num_rows) {
        if (pass_.kept) { detail::add_kept(rows_[u], state + u * 32, values); }
        if (Split && next >= 0 && holds_states()) { load_row(next_row, u); }
        if (is_finished) { finish(position, u, correction, inverse, values); }
        else {
          detail::store_vector(state + u * 32, values);
        }
      }
    }
  }

  //! Whether the rows' registers take over the kept states.
  [[nodiscard]] __device__ __forceinline__ bool holds_states() const
  {
    return sizeof(State) == 2 && pass_.kept;
  }

  //! The top row, read again. r * (r * s): a large row's r^2 would vanish before it meets the row.
  __device__ __forceinline__ void finish(std::int64_t position, int u, float correction,
                                         float inverse, float (&values)[8]) const
  {
    if (!pass_.row_gradient.matrix) { return; }
    float row[8];
    detail::load_state(row_of(position) + u * 32, row);
#pragma unroll
    for (int j = 0; j < 8; ++j) { values[j] = fmaf(correction, inverse * row[j], values[j]); }
    detail::update_columns(pass_.row_gradient, position, column_ + u * 32, values);
  }

  const gather_wide_params<T>& pass_;
  detail::warp_place<Split> place_;
  int lane_;
  int row_, quad_;  // i, a row or a call; q
  int head_;
  std::int64_t column_;
  unsigned char* queries_;
  float4* sums_;  // [warps][vectors][2][lanes]
  head_sums heads_;
  uint4 rows_[static_cast<std::size_t>(vectors)];
  uint4 gradients_[static_cast<std::size_t>(vectors)];
  float inverse_[2];
  float lse_ = 0;
  float dot_ = 0;
  float gate_ = 0;
  float logit_gate_ = 0;
};

}  // namespace block
MHAR_NAMESPACE_END
