// SPDX-License-Identifier: Apache-2.0
//! The sizes that the rounding of a call's gradients is relative to: of the terms that are added,
//! not of sums that may cancel.
#pragma once

#include "support/combined_rounding.hpp"

#include <algorithm>
#include <cmath>

namespace mhar_test {

//! The largest finite element in magnitude; 0 for an absent array.
inline double largest(tensor& values)
{
  double result = 0;
  values.for_each([&](auto... at) {
    const double size = std::abs(values.get(at...));
    if (std::isfinite(size)) { result = std::max(result, size); }
  });
  return result;
}
inline double norm(tensor& values)
{
  double sum = 0;
  values.for_each([&](auto... at) { sum += values.get(at...) * values.get(at...); });
  return std::sqrt(sum);
}
inline double rms(tensor& values)
{
  double count = 0;
  values.for_each([&](auto...) { ++count; });
  return count > 0 ? norm(values) / std::sqrt(count) : 0;
}

//! An upper bound of ro over the positions: 1 without an output norm. Where o is small, or the
//! width is 1, the two terms of the norm's backward are this much larger than their difference.
template <class T>
double output_norm_reach(const call_options<T>& options, tensor& combined)
{
  double result = 1;
  if (options.norm == mhar::output_norm::none) { return result; }
  const placement& where = combined.where();
  for (std::int64_t p = 0; p < where.num_positions; ++p) {
    double squares = 0;
    for (std::int64_t j = 0; j < where.width; ++j) {
      squares += combined.get(0, p, j) * combined.get(0, p, j);
    }
    result = std::max(result, 1 / std::sqrt(squares / static_cast<double>(where.width)));
  }
  return std::min(result, 1 / std::sqrt(options.eps));
}

struct gradient_scales
{
  double partial = 1;             //!< of an element of do, and what the rounding of o makes of it
  double row = 1;                 //!< of an element of ds
  double gate = 1;                //!< of the products do * mix, added up
  double bias = 1;                //!< of dl, added up over positions
  double folded = 1;              //!< of dl * key, added up over positions
  double null_source = 1;         //!< of ds of the null source, added up over positions
  double output_norm_weight = 1;  //!< of the products dy * o, added up

  template <class T>
  gradient_scales(const call_options<T>& options, call_inputs<T>& in, call_results<T>& expected)
  {
    constexpr double largest_key = 4;  // of a normalised row, whose elements are of size 1
    const double alpha = in.gate ? largest(in.gate) : 1;
    const double reach = output_norm_reach(options, expected.combined);
    const double weight = in.output_norm_weight ? largest(in.output_norm_weight) : 1;
    const double source = std::max(rms(in.rows), rms(in.null_source));
    const given_results given{static_cast<bool>(in.mix), static_cast<bool>(in.combined)};
    const combined_rounding rounding{options, in, expected, given};
    const double upstream = reach * weight * norm(in.output_gradient) + norm(in.combined_gradient) +
                            rounding.gradient_norm;

    partial = reach * weight * largest(in.output_gradient) + largest(in.combined_gradient) +
              rounding.gradient;
    output_norm_weight = norm(in.output_gradient) + rounding.output_norm_weight;
    bias = alpha * upstream * source;
    // Without a partial do is orthogonal to the mix but for eps, so what is left of D is all
    // rounding.
    gate = 4 * upstream * source;
    folded = std::abs(options.scale) * bias * largest_key;

    // ds = A + r B - ...: the sum in dl over a head's columns is as much larger than one product as
    // the query's elements are smaller than the logits' spread.
    const double keys = source * std::max(1.0, options.spread);
    row = alpha * partial * (1 + keys * largest(expected.inverse_rms));
    if (in.null_source) {
      const double column = upstream / std::sqrt(static_cast<double>(options.extent.width));
      // The query's largest element, not the usual one: every column has its own, at every position.
      const double element = std::sqrt(static_cast<double>(options.extent.head_width())) *
                             std::abs(options.scale) * largest(in.query);
      null_source = alpha * column *
                    (1 + source * std::max({1.0, options.spread, element}) / rms(in.null_source));
    }
  }
};

}  // namespace mhar_test
