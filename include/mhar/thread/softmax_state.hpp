// SPDX-License-Identifier: Apache-2.0
//! The running softmax of one query over its sources, one source at a time: the state every routing
//! call advances (docs/operator.md, eq. 4, 18 and 19).
#pragma once

#include <mhar/thread/multiply_add.hpp>

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

//! The pair (m, l): the largest logit so far, and the sum of exp(logit - m). The mix that belongs
//! to it is the caller's, spread over as many registers and threads as it likes:
//!
//!     softmax_state<float> state;
//!     for each source {
//!       auto step = state.advance(logit);
//!       acc = step.rescale * acc + step.weight * source;
//!     }
//!     mix = state.normalizer() * acc;
//!
//! Numerics  Exponents are never positive, so nothing overflows. A logit of -inf has weight 0; when
//!           every one is -inf, the mix is 0 and the lse -inf. A NaN logit gives NaN; one of +inf,
//!           which only an overflow makes, gives NaN or takes all the weight.
template <class Accumulate>
struct softmax_state
{
  Accumulate maximum = -infinity<Accumulate>;
  Accumulate sum = 0;

  //! Takes in one source.
  [[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE softmax_step<Accumulate> advance(
      Accumulate logit) noexcept
  {
    return merge({logit, Accumulate{1}});
  }

  //! Takes in all sources of another state, whose unnormalised mix `weight` scales. A state without
  //! sources changes no bit, on either side.
  [[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE softmax_step<Accumulate> merge(
      const softmax_state& other) noexcept
  {
    // One exponential serves both cases: either the new sources or those before keep the factor 1.
    const bool larger = other.maximum > maximum;
    const Accumulate factor = exp_of(larger ? maximum - other.maximum : other.maximum - maximum);
    softmax_step<Accumulate> step{};
    step.rescale = larger ? factor : Accumulate{1};
    // As the first logit, -inf would give exp(-inf - -inf) = NaN.
    step.weight = larger                                   ? Accumulate{1}
                  : other.maximum == -infinity<Accumulate> ? Accumulate{0}
                                                           : factor;
    sum = multiply_add(sum, step.rescale, other.sum * step.weight);
    maximum = larger ? other.maximum : maximum;
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

//! The merge of two normalised mixes: mix = weight_a * mix_a + weight_b * mix_b.
template <class Accumulate>
struct merged_lse
{
  Accumulate lse;
  Accumulate weight_a;
  Accumulate weight_b;
};

//! Eq. 18 for two parts. The weights add up to 1, and are 0 when neither part has a source of
//! weight; a part without one, whose lse is -inf, changes no bit of the other.
template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE merged_lse<Accumulate> merge_lse(
    Accumulate lse_a, Accumulate lse_b) noexcept
{
  softmax_state<Accumulate> state;
  static_cast<void>(state.advance(lse_a));
  const softmax_step<Accumulate> step = state.advance(lse_b);
  const Accumulate before = lse_a == -infinity<Accumulate> ? Accumulate{0} : step.rescale;
  const Accumulate normalizer = state.normalizer();
  return {state.log_sum_exp(), before * normalizer, step.weight * normalizer};
}

}  // namespace thread
MHAR_NAMESPACE_END
