// SPDX-License-Identifier: Apache-2.0
//! The products of gather_tiles: scores and factors, the rows' gradients, and dw.
#pragma once

#include <mhar/block/gather_tiles.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! D of the newest call, from its mix.
template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ float gather_tiles<HeadWidth, TeamWarps, Products, State>::newest_dot(
    int round, int stage, std::int64_t position) const
{
  if (pass_.mix == nullptr) { return scalars_of(round)[pass_.num_calls]; }
  const unsigned char* const gradient = team_memory() + at_.chunks + stage * at_.chunk;
  const unsigned char* const mix = team_memory() + at_.mixes + round % 2 * row_bytes;
  float sum = 0;
  for (int vector = lane_; vector < HeadWidth / 8; vector += 32) {
    sum = detail::add_products(detail::load_vector(gradient + vector * 16),
                               detail::load_vector(mix + vector * 16), sum);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (warp_ == 0 && lane_ == 0) { pass_.dot[head_index(0, position)] = sum; }
  return sum;
}

//! <w, s> and <do, s> of 16 calls and this warp's rows. scores[x][e] + scores[x][e + 2] is call
//! 8x + row_, row 2q + e; products[2x + e] likewise.
template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::multiply(
    int round, int chunk, const unsigned char* calls, float (&scores)[2][4],
    float (&products)[4]) const
{
  const std::uint32_t upper =
      detail::shared_address(shared_ + (lane_ / 8 % 2 == 0 ? 0 : at_.low_queries) +
                             (chunk * 16 + lane_ % 8) * row_bytes + lane_ / 16 * 16);
  const std::uint32_t lower = upper + 8 * row_bytes;
  const int last_call = (min)(16, pass_.num_calls - chunk * 16) - 1;
  const std::uint32_t gradients =
      detail::shared_address(calls + (min)(lane_ % 16, last_call) * row_bytes + lane_ / 16 * 16);
  const int row = (min)(warp_ * 8 + lane_ % 8, pass_.num_rows - 1);
  const std::uint32_t rows =
      detail::shared_address(rows_of(round) + row * row_bytes + lane_ / 8 * 16);
#pragma unroll
  for (int step = 0; step < HeadWidth / 32; ++step) {
    std::uint32_t b[4];
    detail::load_matrices(b, rows + step * 64);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = step * 64 + half * 32;
      std::uint32_t a[4];
      detail::load_matrices(a, gradients + at);
      detail::multiply_add_16(products, a, b[2 * half], b[2 * half + 1]);
      detail::load_matrices(a, upper + at);
      detail::multiply_add_16(scores[0], a, b[2 * half], b[2 * half + 1]);
      detail::load_matrices(a, lower + at);
      detail::multiply_add_16(scores[1], a, b[2 * half], b[2 * half + 1]);
    }
  }
}

//! One chunk of calls at one position: factors, kept for dw, and the rows' gradients. Factors are
//! transposed in registers into the second operand of products that sum over calls.
template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::add_chunk(
    int round, int chunk, int stage, float (&sums)[static_cast<std::size_t>(HeadWidth / 16)][4],
    float (&head_sums)[2])
{
  const unsigned char* const calls = team_memory() + at_.chunks + stage * at_.chunk;
  const std::int64_t position = first_ + position_in_block(round);
  if (chunk == 0) { newest_dot_ = newest_dot(round, stage, position); }
  float scores[2][4] = {};
  float products[4] = {};
  multiply(round, chunk, calls, scores, products);

  const float* const scalars = scalars_of(round);
  const float* const gates = reinterpret_cast<const float*>(shared_ + at_.gates);
  const int last_row = pass_.num_rows - 1;
  std::uint32_t weight_high[2];
  std::uint32_t weight_low[2];
  std::uint32_t factor_high[2];
  std::uint32_t factor_low[2];
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    const int call = chunk * 16 + x * 8 + row_;
    const int known = (min)(call, pass_.num_calls - 1);
    const float dot = known == 0 ? newest_dot_ : scalars[pass_.num_calls + known];
    const float lse = scalars[known] * detail::log2_of_e;
    const float gate = gates[known];
    const float logit_gate = gates[at_.calls + known];
    float weights[2];
    float factors[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int m = warp_ * 8 + quad_ * 2 + e;
      const float inverse = scalars[2 * pass_.num_calls + (min)(m, last_row)];
      const float score = inverse * (scores[x][e] + scores[x][e + 2]);
      const bool counts = call < pass_.num_calls && m <= last_row;
      const bool single = logit_gate == 0;
      const float weight =
          single ? 1.0f : detail::exp2_approximate(fmaf(score, detail::log2_of_e, -lse));
      const float gradient =
          counts && !single ? logit_gate * weight * (products[2 * x + e] - dot) : 0.0f;
      head_sums[e] = fmaf(gradient, counts ? score : 0.0f, head_sums[e]);
      weights[e] = counts ? gate * weight : 0.0f;
      factors[e] = inverse * gradient;
    }
    std::uint32_t high = detail::make_pair(weights[0], weights[1]);
    weight_high[x] = detail::transpose(high);
    weight_low[x] = detail::transpose(detail::make_low_pair(high, weights[0], weights[1]));
    high = detail::make_pair(factors[0], factors[1]);
    factor_high[x] = detail::transpose(high);
    factor_low[x] = detail::transpose(detail::make_low_pair(high, factors[0], factors[1]));
  }
  if (warp_ * 8 + row_ < pass_.num_rows) {
    auto* const high = reinterpret_cast<std::uint32_t*>(
        factors_of(team_ * pass_.num_rows + warp_ * 8 + row_) + chunk * 16 + quad_ * 2);
    std::uint32_t* const low = high + low_factors() / 2;
    high[0] = factor_high[0];
    high[4] = factor_high[1];
    low[0] = factor_low[0];
    low[4] = factor_low[1];
  }

  const int call = lane_ / 16 * 8 + lane_ % 8;
  const int last_call = (min)(16, pass_.num_calls - chunk * 16) - 1;
  const std::uint32_t gradients =
      detail::shared_address(calls + (min)(call, last_call) * row_bytes + lane_ / 8 % 2 * 16);
  const std::uint32_t queries =
      detail::shared_address(shared_ + (chunk * 16 + call) * row_bytes + lane_ / 8 % 2 * 16);
#pragma unroll
  for (int x = 0; x < column_tiles; ++x) {
    std::uint32_t a[4];
    detail::load_transposed(a, gradients + x * 32);
    detail::multiply_add_16(sums[x], a, weight_high[0], weight_high[1]);
    detail::multiply_add_16(sums[x], a, weight_low[0], weight_low[1]);
    detail::load_transposed(a, queries + x * 32);
    detail::multiply_add_16(sums[x], a, factor_high[0], factor_high[1]);
    detail::multiply_add_16(sums[x], a, factor_low[0], factor_low[1]);
    detail::load_transposed(a, queries + at_.low_queries + x * 32);
    detail::multiply_add_16(sums[x], a, factor_high[0], factor_high[1]);
  }
}

//! dw of all pairs of the round: a warp's tiles are 16 columns of 8 calls each.
template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::add_to_queries(
    int round)
{
  const int tiles = (pass_.num_calls + 7) / 8 * column_tiles;
  const int warps = blockDim.x / 32;
  const int pair = lane_ / 16 * 8 + lane_ % 8;
  const auto* const places = reinterpret_cast<const int*>(shared_ + at_.row_places) + pair;
  const std::uint32_t rows = detail::shared_address(shared_) +
                             static_cast<std::uint32_t>(round % 2 * at_.row_set) +
                             lane_ / 8 % 2 * 16;
  std::uint32_t factors =
      detail::shared_address(factors_of(lane_ % 16) + (lane_ / 16 == 0 ? 0 : low_factors()));
  const int num_pairs = pass_.num_teams * pass_.num_rows;
  for (int first = 0; first < num_pairs; first += 16) {
    const std::uint32_t row = rows + static_cast<std::uint32_t>(places[first]);
#pragma unroll
    for (int x = 0; x < Products; ++x) {
      const int tile = threadIdx.x / 32 + x * warps;
      if (tile < tiles) {
        std::uint32_t a[4];
        std::uint32_t b[4];
        detail::load_transposed(a, row + tile % column_tiles * 32);
        detail::load_transposed(b, factors + tile / column_tiles * 16);
        detail::multiply_add_16(query_sums_[x], a, b[0], b[1]);
        detail::multiply_add_16(query_sums_[x], a, b[2], b[3]);
      }
    }
    factors += 16 * at_.factor_stride * 2;
  }
}

}  // namespace block
MHAR_NAMESPACE_END
