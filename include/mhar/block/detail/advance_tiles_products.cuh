// SPDX-License-Identifier: Apache-2.0
//! The two products of advance_tiles: logits to weights, and weights to mixes.
#pragma once

#include <mhar/block/advance_tiles.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <int HeadWidth, int Chunks, int TeamWarps, class State>
__device__ __forceinline__ float advance_tiles<HeadWidth, Chunks, TeamWarps, State>::find_weights(
    int p, int first, unsigned char* buffer,
    std::uint32_t (&weights)[static_cast<std::size_t>(Chunks)][4])
{
  float sums[2 * Chunks][4];
#pragma unroll
  for (int x = 0; x < 2 * Chunks; ++x) { sums[x][0] = sums[x][1] = sums[x][2] = sums[x][3] = 0; }
  const std::uint32_t queries =
      detail::shared_address(shared_ + (lane_ / 8 % 2 == 0 ? 0 : at_.low_queries) +
                             (first + lane_ % 8) * row_bytes + lane_ / 16 * 16);
  std::uint32_t rows[Chunks];
#pragma unroll
  for (int x = 0; x < Chunks; ++x) {
    const int n = (min)(x * 16 + lane_ / 16 * 8 + lane_ % 8, pass_.num_rows - 1);
    rows[x] = detail::shared_address(buffer + n * row_bytes + lane_ / 8 % 2 * 16);
  }
#pragma unroll(unrolled ? HeadWidth / 16 : 2)
  for (int step = 0; step < HeadWidth / 16; ++step) {
    std::uint32_t a[4];
    detail::load_matrices(a, queries + step * 32);
#pragma unroll
    for (int x = 0; x < Chunks; ++x) {
      if (unrolled || x * 16 < pass_.num_rows) {
        std::uint32_t b[4];
        detail::load_matrices(b, rows[x] + step * 32);
        detail::multiply_add_16(sums[2 * x], a, b[0], b[1]);
        detail::multiply_add_16(sums[2 * x + 1], a, b[2], b[3]);
      }
    }
  }
  const auto* const scalars = reinterpret_cast<const float*>(buffer + at_.scalars);
  const int call = first + row_;
  const bool has_state = pass_.kept && call < pass_.num_calls;
  const float carried = has_state ? scalars[pass_.num_rows + call] * detail::log2_of_e : -INFINITY;
  float largest = carried;
#pragma unroll
  for (int x = 0; x < 2 * Chunks; ++x) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int n = x * 8 + quad_ * 2 + e;
      const int last = pass_.num_rows - 1;
      const float inverse = n >= last && pass_.has_new_row ? squares()[p] : scalars[(min)(n, last)];
      const float logit = (sums[x][e] + sums[x][e + 2]) * (inverse * detail::log2_of_e);
      sums[x][e] = n <= last ? logit : -INFINITY;
      largest = fmaxf(largest, sums[x][e]);
    }
  }
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  float sum = 0;
#pragma unroll
  for (int x = 0; x < 2 * Chunks; ++x) {
    sums[x][0] = detail::exp2_approximate(sums[x][0] - largest);
    sums[x][1] = detail::exp2_approximate(sums[x][1] - largest);
    sum += sums[x][0] + sums[x][1];
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  const float carried_weight = detail::exp2_approximate(carried - largest);
  sum += carried_weight;
  const float factor = 1.0f / sum;
#pragma unroll
  for (int x = 0; x < 2 * Chunks; ++x) {
    const float even = sums[x][0] * factor;
    const float odd = sums[x][1] * factor;
    const std::uint32_t high = detail::make_pair(even, odd);
    weights[x / 2][x % 2 * 2] = high;
    weights[x / 2][x % 2 * 2 + 1] = detail::make_low_pair(high, even, odd);
  }
  if (quad_ == 0 && call < pass_.num_calls) {
    const float lse = (largest + log2f(sum)) * detail::log_of_2;
    if (call > 0 || !pass_.finishes) { pass_.state_lse[head_index(call, p)] = lse; }
    else if (pass_.lse != nullptr) {
      pass_.lse[head_index(0, p)] = lse;
    }
  }
  return carried_weight * factor;
}

template <int HeadWidth, int Chunks, int TeamWarps, class State>
__device__ __forceinline__ void advance_tiles<HeadWidth, Chunks, TeamWarps, State>::combine(
    int first, unsigned char* buffer,
    const std::uint32_t (&weights)[static_cast<std::size_t>(Chunks)][4], float carried)
{
  const bool has_call = first + row_ < pass_.num_calls;
  unsigned char* const state = buffer + at_.states + (first + row_) * state_bytes +
                               quad_ * 2 * static_cast<int>(sizeof(State));
  std::uint32_t rows[Chunks];
#pragma unroll
  for (int x = 0; x < Chunks; ++x) {
    const int n = (min)(x * 16 + lane_ % 16, pass_.num_rows - 1);
    rows[x] = detail::shared_address(buffer + n * row_bytes + lane_ / 16 * 16);
  }
#pragma unroll(unrolled ? HeadWidth / 32 : 1)
  for (int group = 0; group < HeadWidth / 32; ++group) {
    float sums[4][4];
#pragma unroll
    for (int x = 0; x < 4; ++x) { sums[x][0] = sums[x][1] = sums[x][2] = sums[x][3] = 0; }
#pragma unroll
    for (int x = 0; x < Chunks; ++x) {
      if (unrolled || x * 16 < pass_.num_rows) {
        std::uint32_t left[4];
        std::uint32_t right[4];
        detail::load_transposed(left, rows[x] + group * 64);
        detail::load_transposed(right, rows[x] + group * 64 + 32);
        detail::multiply_add_16(sums[0], weights[x], left[0], left[1]);
        detail::multiply_add_16(sums[1], weights[x], left[2], left[3]);
        detail::multiply_add_16(sums[2], weights[x], right[0], right[1]);
        detail::multiply_add_16(sums[3], weights[x], right[2], right[3]);
      }
    }
    if (has_call) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        add_state(state + (group * 32 + x * 8) * static_cast<int>(sizeof(State)),
                  sums[x][0] + sums[x][2], sums[x][1] + sums[x][3], carried);
      }
    }
    __syncwarp();
  }
}

template <int HeadWidth, int Chunks, int TeamWarps, class State>
__device__ __forceinline__ void advance_tiles<HeadWidth, Chunks, TeamWarps, State>::add_state(
    unsigned char* place, float first, float second, float carried) const
{
  if constexpr (sizeof(State) == 2) {
    auto* const pair = reinterpret_cast<std::uint32_t*>(place);
    if (pass_.kept) {
      first = fmaf(carried, detail::first_of(*pair), first);
      second = fmaf(carried, detail::second_of(*pair), second);
    }
    *pair = detail::make_pair(first, second);
  }
  else {
    auto* const pair = reinterpret_cast<float2*>(place);
    if (pass_.kept) {
      first = fmaf(carried, pair->x, first);
      second = fmaf(carried, pair->y, second);
    }
    *pair = make_float2(first, second);
  }
}

}  // namespace block
MHAR_NAMESPACE_END
