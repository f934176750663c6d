// SPDX-License-Identifier: Apache-2.0
//! Mean depth weights.
#include "depth_map.hpp"

namespace quickstart {

depth_map::depth_map(int num_calls, int num_heads)
{
  for (int call = 0; call < num_calls; ++call) {
    const int num_rows = call + 1;
    const auto num_values = static_cast<std::size_t>(num_heads * num_rows);
    calls_.push_back({{num_heads, num_rows, std::vector<double>(num_values)}, 0});
  }
}

void depth_map::add(int call, const mhar::analysis::depth_weights<float>& weights)
{
  call_sums& to = calls_[static_cast<std::size_t>(call)];
  const mhar::analysis::head_map means = mhar::analysis::mean_weights(weights);
  for (std::size_t i = 0; i < means.values.size(); ++i) { to.sums.values[i] += means.values[i]; }
  ++to.num_batches;
}

double depth_map::mean(int call, int head, int row) const
{
  const call_sums& from = calls_[static_cast<std::size_t>(call)];
  return from.sums.at(head, row) / from.num_batches;
}

}  // namespace quickstart
