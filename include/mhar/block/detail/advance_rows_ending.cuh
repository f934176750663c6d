// SPDX-License-Identifier: Apache-2.0
//! How advance_rows stores a call, and ends positions of its first one.
#pragma once

#include <mhar/block/advance_rows.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! The mix of a call and its lse, to where they belong. It starts from the kept state or from the null
//! source, which is in shared memory.
template <class T, int HeadWidth, int Rows, class State, int Blocks, bool Ends, bool HasNull>
__device__ __forceinline__ void
advance_rows<T, HeadWidth, Rows, State, Blocks, Ends, HasNull>::store(
    int call, int j, float carried_weight, const float (&weights)[static_cast<std::size_t>(Rows)],
    float lse)
{
  const bool first = call == 0 && pass_.finishes;
  if (inside_ == 0) { return; }
  if (quad_ == 0) {
    if (!first) { *lse_of_ = lse; }
    else if (Ends) {
      first_lse()[row_ * pass_.num_heads + head_] = lse;
    }
    else if (pass_.lse != nullptr) {
      *lse_ = lse;
    }
  }
#pragma unroll
  for (int u = 0; u < vectors; ++u) {
    float mix[8];
    detail::state_vectors<float, 1> null;
    if constexpr (HasNull) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        null.values[half] = mhar::detail::bit_cast<float4>(
            detail::load_shared(nulls_of(j) + quad_ * 32 + u * 128 + half * 16));
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float2 pair = HasNull ? null.get(0, e) : state_.get(u, e);
      pair.x *= carried_weight;
      pair.y *= carried_weight;
#pragma unroll
      for (int n = 0; n < Rows; ++n) {
        const std::uint32_t values = detail::pair_of(rows_[n][u], e);
        pair.x = fmaf(weights[n], detail::first_of<T>(values), pair.x);
        pair.y = fmaf(weights[n], detail::second_of<T>(values), pair.y);
      }
      mix[2 * e] = pair.x;
      mix[2 * e + 1] = pair.y;
    }
    if (first && Ends) {
      detail::store_vector(
          first_mixes_ + row_ * pass_.width + head_ * HeadWidth + quad_ * 8 + u * 32, mix);
      continue;
    }
    if (!first) {
      detail::store_to_memory(state_of_ + u * 32, mix);
      continue;
    }
    detail::store_to_memory(y_ + u * 32, mix);
    if (pass_.mix != nullptr) {
      State* const to = found(place_in(static_cast<State*>(pass_.mix), pass_.mix_stride));
      detail::store_to_memory(to + u * 32, mix);
    }
  }
}

//! A warp per position.
template <class T, int HeadWidth, int Rows, class State, int Blocks, bool Ends, bool HasNull>
__device__ __forceinline__ void
advance_rows<T, HeadWidth, Rows, State, Blocks, Ends, HasNull>::end_first()
{
  float* const parts = first_lse() + 8 * pass_.num_heads +
                       head_ * detail::call_ending<T>::parts_size(pass_.width, pass_.num_heads);
  __syncthreads();
#pragma unroll 1
  for (int row = head_; row < 8 && std::int64_t{blockIdx.x} * 8 + row < pass_.num_positions;
       row += pass_.num_heads) {
    float* const values = first_mixes_ + row * pass_.width;
    detail::position_finish<T, 2, 1>{pass_.ending}.run(
        std::int64_t{blockIdx.x} * 8 + row,
        detail::mix_source<float>{values, first_lse() + row * pass_.num_heads}, values, parts);
  }
}

}  // namespace block
MHAR_NAMESPACE_END
