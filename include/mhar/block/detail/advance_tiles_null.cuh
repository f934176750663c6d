// SPDX-License-Identifier: Apache-2.0
//! How a unit of advance_tiles starts from null sources.
#pragma once

#include <mhar/block/advance_tiles.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Null sources are the same at every position: they come from the caches. One whose logit is -inf
//! has no weight.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::start_from_null(const unit& at)
{
  using scales = detail::operand_scales<T>;
  constexpr float null_weight = 1 << static_cast<int>(scales::shift);
#pragma unroll
  for (int half = 0; half < Halves; ++half) {
    const auto null_call = [&](int call) { return first_call_ + (min)(call, num_calls_ - 1); };
    const float logit = pass_.null_logit[null_call(half * 8 + row_) * pass_.num_heads + at.head] *
                        detail::log2_of_e;
    const float weight = logit == -INFINITY ? 0.0f : null_weight;
    reference_[half] = logit - scales::shift;
    sum_[half] = quad_ == 0 ? weight : 0.0f;
    const float2 weights = to_columns(weight);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float* const from = pass_.null_source +
                                null_call(half * 8 + quad_ * 2 + e) * pass_.width +
                                at.head * HeadWidth + row_;
      const bool counts = (e == 0 ? weights.x : weights.y) != 0;
#pragma unroll
      for (int j = 0; j < steps; ++j) {
        mixes_[half][j][e] = counts ? null_weight * from[j * 16] : 0.0f;
        mixes_[half][j][e + 2] = counts ? null_weight * from[j * 16 + 8] : 0.0f;
      }
    }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
