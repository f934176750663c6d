// SPDX-License-Identifier: Apache-2.0
//! gather_calls: one row of a tile, its products with all calls and its gradient.
#pragma once

#include <mhar/block/gather_calls.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! <w, s> of the row: lane 4*i + q holds call i, positions 2q and 2q + 1.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::multiply(
    float (&logits)[2]) const
{
  float chains[2][4] = {};
#pragma unroll
  for (int t = 0; t < steps; ++t) {
    uint4 a = make_uint4(0, 0, 0, 0);
    if (row_ < Calls) { a = image_[row_ * steps * 4 + t * 4 + quad_]; }
    detail::multiply_add_16<T>(chains[t % 2], a.x, a.y, a.z, a.w,
                               detail::pair_of(row_values_[t / 2], t % 2 * 2),
                               detail::pair_of(row_values_[t / 2], t % 2 * 2 + 1));
  }
#pragma unroll
  for (int x = 0; x < 4; ++x) { chains[0][x] += chains[1][x]; }
  logits[0] = detail::join_parts<T>(chains[0], 0);
  logits[1] = detail::join_parts<T>(chains[0], 1);
}

//! <do, s> of calls c and c + 1, of this lane's position: of the products of all positions with all,
//! those with themselves.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::find_products(
    int c, const uint4 (&of)[static_cast<std::size_t>(vectors)], float (&products)[2]) const
{
  float chains[2][4] = {};
#pragma unroll
  for (int t = 0; t < steps; ++t) {
    const uint4 first = gradient_at(c, t / 2);
    const uint4 second = c + 1 < Calls ? gradient_at(c + 1, t / 2) : make_uint4(0, 0, 0, 0);
    const int e = t % 2 * 2;
    detail::multiply_add_16<T>(chains[t % 2], detail::pair_of(first, e), detail::pair_of(second, e),
                               detail::pair_of(first, e + 1), detail::pair_of(second, e + 1),
                               detail::pair_of(of[t / 2], e), detail::pair_of(of[t / 2], e + 1));
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float even = chains[0][2 * n] + chains[1][2 * n];
    const float odd = chains[0][2 * n + 1] + chains[1][2 * n + 1];
    products[n] = __shfl_sync(0xffffffffu, row_ % 2 == 0 ? even : odd, row_ * 4 + row_ / 2);
  }
}

//! D of the newest call.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::find_dot(
    const detail::state_vectors<T, vectors>& mix)
{
  if (pass_.mix == nullptr) { return; }
  float dots[2];
  find_products(0, mix.values, dots);
  dot_[0] = dots[0];
  if (quad_ == 0 && inside_) { pass_.dot[head_index(0)] = dot_[0]; }
}

//! One row of the tile: factors of every call, dw, and the row's gradient.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::gather_row(
    int m, const float (&logits)[2])
{
  float weights[Calls];  // alpha * a
  float factors[Calls];  // r * dl
  float head_sum = 0;
  float products[2] = {};
#pragma unroll
  for (int c = 0; c < Calls; ++c) {
    if (c % 2 == 0) { find_products(c, row_values_, products); }
    const float even = __shfl_sync(0xffffffffu, logits[0], c * 4 + row_ / 2);
    const float odd = __shfl_sync(0xffffffffu, logits[1], c * 4 + row_ / 2);
    const float score = (row_ % 2 == 0 ? even : odd) * inverse_;
    const bool single = logit_gate_[c] == 0;
    const float weight =
        single ? 1.0f : detail::exp2_approximate((score - lse_[c]) * detail::log2_of_e);
    const float gradient = single ? 0.0f : logit_gate_[c] * weight * (products[c % 2] - dot_[c]);
    weights[c] = inside_ ? gate_[c] * weight : 0.0f;
    factors[c] = inside_ ? inverse_ * gradient : 0.0f;
    head_sum = fmaf(inside_ ? gradient : 0.0f, score, head_sum);
  }
  if (quad_ == 0) { head_sums_[(m * 8 + row_) * max_heads + head_] = head_sum; }
  keep_packed(row_values_);
#pragma unroll
  for (int c = 0; c < resident; ++c) { keep_packed(gradients_[c]); }
  float pair[2] = {0, 0};
#pragma unroll
  for (int c = 0; c < Calls; ++c) { pair[c % 2] = quad_ == c / 2 ? factors[c] : pair[c % 2]; }
  const std::uint32_t high = detail::make_pair<bfloat16>(pair[0], pair[1]);
  const std::uint32_t low = detail::make_low_pair<bfloat16>(high, pair[0], pair[1]);
  if (m == 0 && pass_.finishes) {
    __syncthreads();
    const float correction = -inverse_ * total_head_sum(0, top_sum_) * pass_.inverse_width;
    if (pass_.row_gradient != nullptr) {
      store_row<true>(m, weights, factors, high, low, correction);
    }
  }
  else {
    store_row<false>(m, weights, factors, high, low, 0.0f);
  }
  __syncwarp();  // lanes outside have skipped the store
  add_to_queries(detail::transpose(high), detail::transpose(low));
}

//! A + r B, and for a finished row the norm's part.
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
template <bool Finishes>
__device__ __forceinline__ void gather_calls<T, HeadWidth, Calls, State, Ahead>::store_row(
    int m, const float (&weights)[static_cast<std::size_t>(Calls)],
    const float (&factors)[static_cast<std::size_t>(Calls)], std::uint32_t high, std::uint32_t low,
    float correction)
{
  if (!shares && !inside_) { return; }
#pragma unroll
  for (int u = 0; u < vectors; ++u) {
    float sums[8];
    uint4 queries = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float2 pair = state_.get(u, e);
      if constexpr (shares) {
        if (e % 2 == 0) {
          queries = reinterpret_cast<const uint4*>(query_)[(u * 2 + e / 2) * 32 + lane_];
        }
        float sum[4] = {pair.x, pair.y, 0, 0};
        detail::multiply_add_16<bfloat16>(sum, high, low, high, 0u,
                                          detail::pair_of(queries, e % 2 * 2),
                                          detail::pair_of(queries, e % 2 * 2 + 1));
        pair = make_float2(sum[0] + sum[2], sum[1] + sum[3]);
      }
#pragma unroll
      for (int c = 0; c < Calls; ++c) {
        const std::uint32_t gradient = detail::pair_of(gradient_at(c, u), e);
        pair.x = fmaf(weights[c], detail::first_of<T>(gradient), pair.x);
        pair.y = fmaf(weights[c], detail::second_of<T>(gradient), pair.y);
      }
      sums[2 * e] = pair.x;
      sums[2 * e + 1] = pair.y;
    }
#pragma unroll
    for (int c = 0; c < (shares ? 0 : Calls); ++c) {
      const float* const query = query_ + c * HeadWidth + u * 32 + quad_ * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 values = *reinterpret_cast<const float4*>(query + half * 4);
        sums[half * 4] = fmaf(factors[c], values.x, sums[half * 4]);
        sums[half * 4 + 1] = fmaf(factors[c], values.y, sums[half * 4 + 1]);
        sums[half * 4 + 2] = fmaf(factors[c], values.z, sums[half * 4 + 2]);
        sums[half * 4 + 3] = fmaf(factors[c], values.w, sums[half * 4 + 3]);
      }
    }
    if constexpr (Finishes) {
      // r * (r * s): a large row's r^2 would vanish before it meets the row.
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::uint32_t values = detail::pair_of(row_values_[u], e);
        sums[2 * e] = fmaf(correction, inverse_ * detail::first_of<T>(values), sums[2 * e]);
        sums[2 * e + 1] =
            fmaf(correction, inverse_ * detail::second_of<T>(values), sums[2 * e + 1]);
      }
      T* const to = pass_.row_gradient + position_ * pass_.gradient_stride + column_;
      if (!shares || inside_) { detail::store_vector(to + u * 32, sums); }
    }
    else if (!shares || inside_) {
      detail::store_vector(state_of(m) + u * 32, sums);
    }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
