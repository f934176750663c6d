// SPDX-License-Identifier: Apache-2.0
//! What the rounding of o = partial + gate * mix becomes: o may be a small difference of large terms, and its norm and the norm's
//! backward make the error large again.
#pragma once

#include "support/call_arrays.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace mhar_test {

//! Which results of the forward are given, so that nobody rounds them.
struct given_results
{
  bool mix = false;
  bool combined = false;
};

//! Let every term that o_j is a sum of be off by one part in a unit, so that o_j is off by at most delta_j units, the sum of its
//! terms' magnitudes. To first order, with r = (mean(o^2) + eps)^-1/2, n = r o, u = og * dy and g = r (u - n mean(u n)):
//!
//!     dn = r (delta - n mean(n delta))
//!     dg = -r mean(n delta) g - r (dn mean(u n) + n mean(u dn))
//!
//! Here are the largest magnitudes that these can have, in units, whatever the signs of the errors.
struct combined_rounding
{
  double terms = 0;               //!< the largest delta_j
  double output = 0;              //!< of an element of y: og * dn
  double gradient = 0;            //!< of an element of g
  double gradient_norm = 0;       //!< of g, all columns and positions together
  double output_norm_weight = 0;  //!< of dy * dn, all columns and positions together

  template <class T>
  combined_rounding(const call_options<T>& options, call_inputs<T>& in, call_results<T>& expected,
                    given_results given = {})
  {
    if (given.combined) { return; }
    for (std::int64_t p = 0; p < options.extent.num_positions; ++p) {
      const std::vector<double> delta = terms_of_position(options, in, expected, given, p);
      for (const double size : delta) { terms = finite_max(terms, size); }
      if (options.norm == mhar::output_norm::rms) { through_norm(options, in, expected, delta, p); }
    }
    if (options.norm == mhar::output_norm::none) { output = terms; }
    gradient_norm = std::sqrt(gradient_norm);
    output_norm_weight = std::sqrt(output_norm_weight);
  }

private:
  static double finite_max(double largest, double size)
  {
    return std::isfinite(size) ? std::max(largest, size) : largest;
  }

  //! The delta_j of one position.
  template <class T>
  static std::vector<double> terms_of_position(const call_options<T>& options, call_inputs<T>& in,
                                               call_results<T>& expected, given_results given,
                                               std::int64_t p)
  {
    const mhar::shape& extent = options.extent;
    const double gate = in.gate ? std::abs(in.gate.get(0, 0, 0)) : 1;
    const int num_null = options.null_source ? 1 : 0;
    std::vector<double> delta;
    for (std::int64_t j = 0; j < extent.width; ++j) {
      double mix = 0;
      if (given.mix) { mix = std::abs(in.mix.get(0, p, j)); }
      for (int n = 0; !given.mix && n < options.num_sources(); ++n) {
        const double source =
            n < num_null ? in.null_source.get(0, 0, j) : in.rows.get(n - num_null, p, j);
        const std::int64_t head = j / extent.head_width();
        mix += std::abs(expected.weights.get(0, p * extent.num_heads + head, n) * source);
      }
      delta.push_back(gate * mix + (in.partial ? std::abs(in.partial.get(0, p, j)) : 0));
    }
    return delta;
  }

  template <class T>
  void through_norm(const call_options<T>& options, call_inputs<T>& in, call_results<T>& expected,
                    const std::vector<double>& delta, std::int64_t p)
  {
    const std::int64_t width = options.extent.width;
    const auto mean = [&](auto value) {
      double sum = 0;
      for (std::int64_t j = 0; j < width; ++j) { sum += value(j); }
      return sum / static_cast<double>(width);
    };
    const auto o = [&](std::int64_t j) { return expected.combined.get(0, p, j); };
    const double norm_eps = 10 * options.eps;  // as call_case asks for
    const double r = 1 / std::sqrt(mean([&](std::int64_t j) { return o(j) * o(j); }) + norm_eps);
    const auto n = [&](std::int64_t j) { return r * o(j); };
    const auto weight = [&](std::int64_t j) {
      return in.output_norm_weight ? in.output_norm_weight.get(0, 0, j) : 1;
    };
    const auto dy = [&](std::int64_t j) { return in.output_gradient.get(0, p, j); };
    const auto u = [&](std::int64_t j) { return weight(j) * dy(j); };
    const auto size = [&](std::int64_t j) { return delta[static_cast<std::size_t>(j)]; };

    const double projection = mean([&](std::int64_t j) { return u(j) * n(j); });
    const double n_delta = mean([&](std::int64_t j) { return std::abs(n(j)) * size(j); });
    const auto dn = [&](std::int64_t j) { return r * (size(j) + std::abs(n(j)) * n_delta); };
    const double u_dn = mean([&](std::int64_t j) { return std::abs(u(j)) * dn(j); });
    for (std::int64_t j = 0; j < width; ++j) {
      const double g = r * (u(j) - n(j) * projection);
      const double dg =
          r * (n_delta * std::abs(g) + dn(j) * std::abs(projection) + std::abs(n(j)) * u_dn);
      const double weight_gradient = dy(j) * dn(j);
      output = finite_max(output, std::abs(weight(j)) * dn(j));
      gradient = finite_max(gradient, dg);
      if (std::isfinite(dg)) { gradient_norm += dg * dg; }
      if (std::isfinite(weight_gradient)) {
        output_norm_weight += weight_gradient * weight_gradient;
      }
    }
  }
};

}  // namespace mhar_test
