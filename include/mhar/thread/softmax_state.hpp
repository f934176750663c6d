// SPDX-License-Identifier: Apache-2.0
//! The running softmax of one query over its sources, one source at a time: the state every routing call advances.
#pragma once

#include <mhar/config.hpp>

#include <cmath>

MHAR_NAMESPACE_BEGIN
namespace thread {

template <class Accumulate>
inline constexpr Accumulate infinity = static_cast<Accumulate>(INFINITY);

//! exp(x) for x <= 0.
[[nodiscard]] MHAR_HOST_DEVICE inline float exp_of(float x) noexcept { return expf(x); }
[[nodiscard]] MHAR_HOST_DEVICE inline double exp_of(double x) noexcept { return exp(x); }
[[nodiscard]] MHAR_HOST_DEVICE inline float log_of(float x) noexcept { return logf(x); }
[[nodiscard]] MHAR_HOST_DEVICE inline double log_of(double x) noexcept { return log(x); }

//! What one more source does to an unnormalised mix: mix = rescale * mix + weight * source.
template <class Accumulate>
struct softmax_step
{
  Accumulate rescale;
  Accumulate weight;
};

//! The pair (m, l): the largest logit so far, and the sum of exp(logit - m). The mix that belongs to it is the caller's.
template <class Accumulate>
struct softmax_state
{
  Accumulate maximum = -infinity<Accumulate>;
  Accumulate sum = 0;

  //! Takes in one source. A logit of -inf has weight 0, also as the first one, where inf - inf would make it NaN.
  [[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE softmax_step<Accumulate> advance(
      Accumulate logit) noexcept
  {
    // One exponential serves both cases: either the new source or everything before it keeps the factor 1.
    const bool larger = logit > maximum;
    const Accumulate factor = exp_of(larger ? maximum - logit : logit - maximum);
    softmax_step<Accumulate> step{};
    step.rescale = larger ? factor : Accumulate{1};
    step.weight = larger ? Accumulate{1} : logit == -infinity<Accumulate> ? Accumulate{0} : factor;
    sum = sum * step.rescale + step.weight;
    maximum = larger ? logit : maximum;
    return step;
  }

  //! What turns the unnormalised mix into the mix; 0 when no source has weight.
  [[nodiscard]] MHAR_HOST_DEVICE Accumulate normalizer() const noexcept
  {
    return sum == Accumulate{0} ? Accumulate{0} : Accumulate{1} / sum;
  }
  //! Natural log of the sum of exp(logit); -inf when no source has weight.
  [[nodiscard]] MHAR_HOST_DEVICE Accumulate log_sum_exp() const noexcept
  {
    return sum == Accumulate{0} ? -infinity<Accumulate> : maximum + log_of(sum);
  }
};

}  // namespace thread
MHAR_NAMESPACE_END
