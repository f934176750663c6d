// SPDX-License-Identifier: Apache-2.0
//! The softmax over sources, with what earlier passes (or the null source) contributed as one more source of known logit.
#pragma once

#include <mhar/cpu/detail/exponential.hpp>

#include <cmath>
#include <limits>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

template <class Accumulate>
struct softmax_sum
{
  Accumulate lse;
  Accumulate carried;  //!< the weight of what was carried in
};

//! Turns logits into weights in place. When every logit is -inf, all weights are 0 and lse is -inf: exp(-inf - -inf) would be
//! NaN. A NaN among the logits makes all weights and lse NaN. `carried_logit` is -inf when nothing was carried.
template <class Accumulate>
[[nodiscard]] softmax_sum<Accumulate> softmax(Accumulate* logits, int count,
                                              Accumulate carried_logit) noexcept
{
  constexpr Accumulate nothing = -std::numeric_limits<Accumulate>::infinity();
  Accumulate largest = carried_logit;
  for (int n = 0; n < count; ++n) { largest = logits[n] > largest ? logits[n] : largest; }
  if (largest == nothing) {
    // No logit is larger than -inf: the sum is -inf, too, unless there is a NaN, which compares with nothing.
    Accumulate lse = carried_logit;
    for (int n = 0; n < count; ++n) { lse += logits[n]; }
    const Accumulate weight = lse == nothing ? Accumulate{0} : lse;
    for (int n = 0; n < count; ++n) { logits[n] = weight; }
    return {lse, weight};
  }
  const Accumulate carried = exponential(carried_logit - largest);
  for (int n = 0; n < count; ++n) { logits[n] = exponential(logits[n] - largest); }
  Accumulate sum = carried;
  for (int n = 0; n < count; ++n) { sum += logits[n]; }
  for (int n = 0; n < count; ++n) { logits[n] /= sum; }
  return {largest + std::log(sum), carried / sum};
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
