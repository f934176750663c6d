// SPDX-License-Identifier: Apache-2.0
//! A backward pass over wide heads: a warp holds eight rows and eight calls' gradients of a
//! position and head in registers, and all products read them from there.
#pragma once

#include <mhar/block/detail/cluster_exchange.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/sweep_wide_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! A cluster of the heads per range of positions; warp w takes every eighth position of the range.
//! Lane 4*i + q holds columns 8q ... 8q+7 of every 32 of row i and of the gradient of call i: as
//! they are, operands of the products over columns; with 8 x 8 pieces transposed, of those over
//! rows (dw) and over calls (ds). Sums over heads are sent around the cluster while dw is added up;
//! every warp adds to a copy of dw of its own in shared memory, and the block adds the copies in
//! order.
//!
//! Threads      num_threads
//! Barriers     two, and one over the cluster
//! Shared       shared_bytes
//! Numerics     a position's bits do not depend on the number of rows
template <int HeadWidth, class State>
class gather_wide
{
public:
  static constexpr int num_threads = 256;
  static constexpr int max_rows = 8;
  static constexpr int max_calls = 8;
  static constexpr int max_heads = 8;
  static constexpr int num_warps = num_threads / 32;

  //! Queries in two parts, a copy of dw per warp, head sums on their way, their barriers.
  static constexpr int shared_bytes = 2 * max_calls * HeadWidth * 2 +
                                      num_warps * max_calls * HeadWidth * 4 +
                                      num_warps * 2 * (max_rows * max_heads * 4 + 8);

  __device__ __forceinline__ gather_wide(const gather_wide_params& pass, unsigned char* shared)
      : pass_{pass},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4},
        warp_{static_cast<int>(threadIdx.x / 32)},
        head_{static_cast<int>(blockIdx.x)},
        column_{std::int64_t{head_} * HeadWidth + quad_ * 8},
        queries_{shared}
  {
    sums_ = reinterpret_cast<float4*>(shared + 2 * part_bytes);
    auto* const exchanged = reinterpret_cast<float*>(sums_ + num_warps * sum_vectors);
    head_sums_ = exchanged + warp_ * 2 * max_rows * max_heads;
    barriers_ = detail::shared_address(exchanged + num_warps * 2 * max_rows * max_heads);
  }

  //! After the kernels in front have ended.
  __device__ __forceinline__ void run()
  {
    load_queries();
    for (int x = threadIdx.x; x < num_warps * sum_vectors; x += num_threads) {
      sums_[x] = make_float4(0, 0, 0, 0);
    }
    if (threadIdx.x == 0) {
      for (int x = 0; x < num_warps * 2; ++x) { detail::start_exchange(barriers_ + x * 8); }
    }
    __syncthreads();
    detail::arrive_at_cluster();
    detail::wait_for_cluster();
    gate_ = row_ < pass_.num_calls ? pass_.gate[row_] : 0.0f;
    logit_gate_ = row_ < pass_.num_calls ? pass_.logit_gate[row_] : 0.0f;
    const std::int64_t last = pass_.num_positions * (blockIdx.y + 1) / gridDim.y;
    std::int64_t position = pass_.num_positions * blockIdx.y / gridDim.y + warp_;
    for (int round = 0; position < last; position += num_warps, ++round) {
      gather(position, round);
    }
    __syncthreads();
    store_query_sums();
    // A block whose shared memory others may still write to must not end.
    detail::arrive_at_cluster();
    detail::wait_for_cluster();
  }

private:
  static constexpr int vectors = HeadWidth / 32;
  static constexpr int part_bytes = max_calls * HeadWidth * 2;
  static constexpr int sum_vectors = max_calls * HeadWidth / 4;

  [[nodiscard]] __device__ __forceinline__ State* state_of(std::int64_t position, int u) const
  {
    return static_cast<State*>(pass_.states) + row_ * pass_.slot_stride + position * pass_.width +
           column_ + u * 32;
  }
  [[nodiscard]] __device__ __forceinline__ const bfloat16* row_of(std::int64_t position) const
  {
    return pass_.rows + row_ * pass_.row_stride + position * pass_.position_stride + column_;
  }

  //! Piece e of vector u is an 8 x 8 matrix in one piece: of every call, columns 32u + 8q + 2e and
  //! the next, as the registers of the rows' vectors hold them.
  __device__ __forceinline__ void load_queries()
  {
    constexpr int pairs = HeadWidth / 2;
    for (int x = threadIdx.x; x < 2 * max_calls * pairs; x += num_threads) {
      const int part = x / (max_calls * pairs);
      const int call = x / pairs % max_calls;
      const int pair = x % pairs;
      std::uint32_t value = 0;
      if (call < pass_.num_calls) {
        const int index = pass_.first_call + call;
        const bfloat16* const from =
            part == 0 ? pass_.queries.high(index) : pass_.queries.low(index);
        value = reinterpret_cast<const std::uint32_t*>(from + head_ * HeadWidth)[pair];
      }
      const int place = ((pair / 16 * 4 + pair % 4) * max_calls + call) * 4 + pair / 4 % 4;
      reinterpret_cast<std::uint32_t*>(queries_ + part * part_bytes)[place] = value;
    }
  }

  __device__ __forceinline__ void load(std::int64_t position)
  {
    const bfloat16* const row = row_of(position);
    const bfloat16* const gradient = pass_.call_gradients + row_ * pass_.call_stride +
                                     position * pass_.call_position_stride + column_;
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      rows_[u] = row_ < pass_.num_rows ? detail::load_vector(row + u * 32) : zero;
    }
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      gradients_[u] = row_ < pass_.num_calls ? detail::load_vector(gradient + u * 32) : zero;
    }
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

  __device__ __forceinline__ void gather(std::int64_t position, int round)
  {
    const int parity = round % 2;
    const std::uint32_t exchange = barriers_ + (warp_ * 2 + parity) * 8;
    if (lane_ == 0) { detail::expect_bytes(exchange, pass_.num_heads, max_rows * 4); }
    load(position);
    // What lane m adds the heads' sums of row m to.
    float kept_sum = 0;
    if (pass_.kept && lane_ < pass_.num_rows) {
      kept_sum = pass_.head_sums[lane_ * pass_.num_positions + position];
    }
    float weights[2];
    float factors[2];
    find_factors(weights, factors, exchange, parity);
    add_to_queries(position, factors);
    detail::wait_for_bytes(exchange, round / 2 % 2);
    const float total = total_head_sum(parity, kept_sum, position);
    const float correction =
        -__shfl_sync(0xffffffffu, total * inverse_[0], 0) * pass_.inverse_width;
    store_rows(position, weights, factors, correction);
  }

  //! Lane 4*i + q: alpha * a and r * dl of call i and rows 2q, 2q + 1. Sends every row's sum of
  //! dl * u to all heads.
  __device__ __forceinline__ void find_factors(float (&weights)[2], float (&factors)[2],
                                               std::uint32_t exchange, int parity)
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
        detail::multiply_add_16(scores, high[2 * v], low[2 * v], high[2 * v + 1], low[2 * v + 1],
                                b0, b1);
        detail::multiply_add_16(products, detail::pair_of(gradients_[u], 2 * v), 0u,
                                detail::pair_of(gradients_[u], 2 * v + 1), 0u, b0, b1);
      }
    }
    const bool single = logit_gate_ == 0;
    const bool none = lse_ == detail::minus_infinity<float>();
    float head_sums[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool counts = row_ < pass_.num_calls && quad_ * 2 + e < pass_.num_rows && !none;
      const float score = inverse_[e] * (scores[e] + scores[e + 2]);
      const float weight =
          single ? 1.0f : detail::exp2_approximate((score - lse_) * detail::log2_of_e);
      const float gradient =
          counts && !single && weight != 0 ? logit_gate_ * weight * (products[e] - dot_) : 0.0f;
      weights[e] = counts && weight != 0 ? gate_ * weight : 0.0f;
      factors[e] = inverse_[e] * gradient;
      head_sums[e] = gradient * (counts ? score : 0.0f);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        head_sums[e] += __shfl_xor_sync(0xffffffffu, head_sums[e], offset);
      }
    }
    if (row_ < pass_.num_heads) {
      float* const place = head_sums_ + (parity * max_rows + quad_ * 2) * max_heads + head_;
      detail::send(detail::shared_address(place), exchange, pass_.num_heads, row_, head_sums[0]);
      detail::send(detail::shared_address(place + max_heads), exchange, pass_.num_heads, row_,
                   head_sums[1]);
    }
  }

  //! Of row m in lane m, heads added in order. One block of the cluster keeps it.
  [[nodiscard]] __device__ __forceinline__ float total_head_sum(int parity, float kept,
                                                                std::int64_t position) const
  {
    if (lane_ >= pass_.num_rows) { return 0; }
    float total = kept;
    const float* const sums = head_sums_ + (parity * max_rows + lane_) * max_heads;
    for (int h = 0; h < pass_.num_heads; ++h) { total += sums[h]; }
    const bool is_finished = pass_.finishes && lane_ == 0;
    if (!is_finished && lane_ % pass_.num_heads == head_) {
      pass_.head_sums[lane_ * pass_.num_positions + position] = total;
    }
    return total;
  }

  //! dw of the warp's copy, and the kept states of the rows into the registers that this frees.
  __device__ __forceinline__ void add_to_queries(std::int64_t position, const float (&factors)[2])
  {
    const std::uint32_t high = detail::make_pair(factors[0], factors[1]);
    const std::uint32_t low = detail::make_low_pair(high, factors[0], factors[1]);
    float4* const sums = sums_ + warp_ * sum_vectors + lane_;
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      float added[8];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float pair[4] = {0, 0, 0, 0};
        detail::multiply_add_8(pair, high, low, detail::transpose(detail::pair_of(rows_[u], e)));
        added[2 * e] = pair[0] + pair[2];
        added[2 * e + 1] = pair[1] + pair[3];
      }
      if constexpr (sizeof(State) == 2) {
        if (pass_.kept && row_ < pass_.num_rows) {
          rows_[u] = detail::load_vector(state_of(position, u));
        }
      }
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
                                             const float (&factors)[2], float correction)
  {
    // First operands: rows by calls.
    std::uint32_t pair = detail::make_pair(weights[0], weights[1]);
    const std::uint32_t weight_high = detail::transpose(pair);
    const std::uint32_t weight_low =
        detail::transpose(detail::make_low_pair(pair, weights[0], weights[1]));
    pair = detail::make_pair(factors[0], factors[1]);
    const std::uint32_t factor_high = detail::transpose(pair);
    const std::uint32_t factor_low =
        detail::transpose(detail::make_low_pair(pair, factors[0], factors[1]));
    const std::uint32_t queries = detail::shared_address(queries_) + lane_ * 16;
    const float inverse = __shfl_sync(0xffffffffu, inverse_[0], 0);
    const bool is_finished = pass_.finishes && row_ == 0;
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
        detail::multiply_add_16(sums, weight_high, weight_low, factor_high, factor_low,
                                detail::transpose(detail::pair_of(gradients_[u], e)), high[e]);
        detail::multiply_add_8(sums, factor_high, 0u, low[e]);
        values[2 * e] = sums[0] + sums[2];
        values[2 * e + 1] = sums[1] + sums[3];
      }
      // No branch around the products: all lanes take part in them.
      if (row_ < pass_.num_rows) {
        add_state(position, u, values);
        if (is_finished) { finish(position, u, correction, inverse, values); }
        else {
          detail::store_vector(state_of(position, u), values);
        }
      }
    }
  }

  __device__ __forceinline__ void add_state(std::int64_t position, int u, float (&values)[8]) const
  {
    if (!pass_.kept) { return; }
    float kept[8];
    if constexpr (sizeof(State) == 2) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        kept[2 * e] = detail::first_of(detail::pair_of(rows_[u], e));
        kept[2 * e + 1] = detail::second_of(detail::pair_of(rows_[u], e));
      }
    }
    else {
      detail::load_state(state_of(position, u), kept);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) { values[j] += kept[j]; }
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

  //! The warps' copies in order, added to chunk blockIdx.y.
  __device__ __forceinline__ void store_query_sums()
  {
    if (pass_.query_sums == nullptr) { return; }
    for (int x = threadIdx.x; x < sum_vectors; x += num_threads) {
      const int call = x % 32 / 4;
      if (call >= pass_.num_calls) { continue; }
      auto* const to = reinterpret_cast<float4*>(
          pass_.query_sums + blockIdx.y * pass_.chunk_stride + call * pass_.width +
          head_ * HeadWidth + x / 64 * 32 + x % 4 * 8 + x / 32 % 2 * 4);
      float4 sum = *to;
      for (int w = 0; w < num_warps; ++w) {
        const float4 added = sums_[w * sum_vectors + x];
        sum.x += added.x;
        sum.y += added.y;
        sum.z += added.z;
        sum.w += added.w;
      }
      *to = sum;
    }
  }

  const gather_wide_params& pass_;
  int lane_;
  int row_;   // i: a row, or a call
  int quad_;  // q
  int warp_;
  int head_;
  std::int64_t column_;
  unsigned char* queries_;
  float4* sums_;      // [warps][vectors][2][lanes]
  float* head_sums_;  // [2][rows][heads] of this warp
  std::uint32_t barriers_;
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
