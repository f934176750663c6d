// SPDX-License-Identifier: Apache-2.0
//! The width-disagreement probe: how far the depths that parts of the width would read lie from the
//! depths that they are made to share.
//!
//! To probe a trained single-head site, route it twice: with num_heads = 1, which gives the shared
//! weights, and with num_heads = S, which lets each of S slices of the query choose alone. Nothing
//! is trained anew. The same with a random query of the same norm gives the part that geometry
//! explains; what a trained query adds to it is learned.
#pragma once

#include <mhar/analysis/weights.hpp>

#include <cmath>
#include <limits>

MHAR_NAMESPACE_BEGIN
namespace analysis {

//! KL(a || b) in nats; infinite where b has no weight and a has.
template <class Real>
[[nodiscard]] double divergence(const Real* a, const Real* b, int num_sources)
{
  double sum = 0;
  for (int n = 0; n < num_sources; ++n) {
    const auto own = static_cast<double>(a[n]);
    const auto other = static_cast<double>(b[n]);
    if (own == 0) { continue; }
    if (other == 0) { return std::numeric_limits<double>::infinity(); }
    sum += own * std::log(own / other);
  }
  return sum;
}

//! Mean over positions and slices of KL(slice || shared): 0 when every slice would read what they
//! share.
//!
//!   slices  [P, S, N]  weights of the call with num_heads = S
//!   shared  [P, 1, N]  weights of the call with num_heads = 1, over the same rows
//! 0 without positions. Throws invalid_argument unless numbers of positions and sources agree.
template <class Real>
[[nodiscard]] double width_disagreement(const depth_weights<Real>& slices,
                                        const depth_weights<Real>& shared)
{
  check_weights(slices, "slices");
  check_weights(shared, "shared");
  if (slices.num_positions != shared.num_positions || slices.num_sources != shared.num_sources ||
      shared.num_heads != 1) {
    check(status{code::bad_shape, "shared",
                 "has one head, and as many positions and sources as the slices"});
  }
  double sum = 0;
  for (std::int64_t p = 0; p < slices.num_positions; ++p) {
    for (int h = 0; h < slices.num_heads; ++h) {
      sum += divergence(slices.at(p, h), shared.at(p, 0), slices.num_sources);
    }
  }
  const double count = static_cast<double>(slices.num_positions) * slices.num_heads;
  return count > 0 ? sum / count : 0;
}

//! The same for a site that has heads: how far they lie apart. Mean over positions and heads of
//! KL(head || mean of the heads), between 0 and log H.
template <class Real>
[[nodiscard]] double head_disagreement(const depth_weights<Real>& weights)
{
  check_weights(weights, "weights");
  double sum = 0;
  for (std::int64_t p = 0; p < weights.num_positions; ++p) {
    for (int n = 0; n < weights.num_sources; ++n) {
      double mean = 0;
      for (int h = 0; h < weights.num_heads; ++h) {
        mean += static_cast<double>(weights.at(p, h)[n]) / weights.num_heads;
      }
      for (int h = 0; h < weights.num_heads; ++h) {
        const auto own = static_cast<double>(weights.at(p, h)[n]);
        if (own != 0) { sum += own * std::log(own / mean); }  // NaN counts
      }
    }
  }
  const double count = static_cast<double>(weights.num_positions) * weights.num_heads;
  return count > 0 ? sum / count : 0;
}

}  // namespace analysis
MHAR_NAMESPACE_END
