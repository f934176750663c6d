// SPDX-License-Identifier: Apache-2.0
//! What the heads of a routing site do: their mean depth weights, how each deviates from the
//! others, and how sharply it chooses.
#pragma once

#include <mhar/analysis/weights.hpp>

#include <cmath>
#include <vector>

MHAR_NAMESPACE_BEGIN
namespace analysis {

//! One number per head and source, [num_heads, num_sources].
struct head_map
{
  int num_heads = 0;
  int num_sources = 0;
  std::vector<double> values;

  [[nodiscard]] double at(int head, int source) const
  {
    return values[static_cast<std::size_t>(head) * static_cast<std::size_t>(num_sources) +
                  static_cast<std::size_t>(source)];
  }
};

//! Mean over positions of every head's weight of every source; 0 without positions.
template <class Real>
[[nodiscard]] head_map mean_weights(const depth_weights<Real>& weights)
{
  check_weights(weights, "weights");
  const auto num_entries =
      static_cast<std::size_t>(weights.num_heads) * static_cast<std::size_t>(weights.num_sources);
  head_map map{weights.num_heads, weights.num_sources, std::vector<double>(num_entries)};
  for (std::int64_t p = 0; p < weights.num_positions; ++p) {
    const Real* const first = weights.at(p, 0);
    for (std::size_t i = 0; i < num_entries; ++i) {
      map.values[i] += static_cast<double>(first[i]) / static_cast<double>(weights.num_positions);
    }
  }
  return map;
}

//! The head deviation map: every head's mean weights minus the mean over heads. Columns add up to
//! 0; all of it is 0 when the heads route alike.
template <class Real>
[[nodiscard]] head_map head_deviation(const depth_weights<Real>& weights)
{
  head_map map = mean_weights(weights);
  for (int n = 0; n < map.num_sources; ++n) {
    double consensus = 0;
    for (int h = 0; h < map.num_heads; ++h) { consensus += map.at(h, n) / map.num_heads; }
    for (int h = 0; h < map.num_heads; ++h) {
      map.values[static_cast<std::size_t>(h) * static_cast<std::size_t>(map.num_sources) +
                 static_cast<std::size_t>(n)] -= consensus;
    }
  }
  return map;
}

//! Entropy of one head's weights at one position, in nats: 0 when one source takes all, log N when
//! all sources take the same.
template <class Real>
[[nodiscard]] double entropy(const Real* weights, int num_sources)
{
  double sum = 0;
  for (int n = 0; n < num_sources; ++n) {
    const auto a = static_cast<double>(weights[n]);
    if (a != 0) { sum -= a * std::log(a); }  // NaN counts
  }
  return sum;
}

//! Mean over positions of every head's entropy, [num_heads]; 0 without positions.
template <class Real>
[[nodiscard]] std::vector<double> head_entropy(const depth_weights<Real>& weights)
{
  check_weights(weights, "weights");
  std::vector<double> means(static_cast<std::size_t>(weights.num_heads));
  for (std::int64_t p = 0; p < weights.num_positions; ++p) {
    for (int h = 0; h < weights.num_heads; ++h) {
      means[static_cast<std::size_t>(h)] += entropy(weights.at(p, h), weights.num_sources) /
                                            static_cast<double>(weights.num_positions);
    }
  }
  return means;
}

}  // namespace analysis
MHAR_NAMESPACE_END
