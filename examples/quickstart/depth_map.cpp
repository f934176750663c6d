// SPDX-License-Identifier: Apache-2.0
//! Mean depth weights.
#include "depth_map.hpp"

namespace quickstart {

depth_map::depth_map(int num_calls, int num_heads)
    : num_calls_{num_calls},
      num_heads_{num_heads},
      sums_(static_cast<std::size_t>(num_calls) * static_cast<std::size_t>(num_heads * num_calls)),
      positions_(static_cast<std::size_t>(num_calls))
{
}

std::size_t depth_map::index(int call, int head, int row) const
{
  return static_cast<std::size_t>((call * num_heads_ + head) * num_calls_ + row);
}

void depth_map::add(int call, const std::vector<float>& weights)
{
  const int num_rows = call + 1;
  auto next = weights.begin();
  while (next != weights.end()) {
    for (int head = 0; head < num_heads_; ++head) {
      for (int row = 0; row < num_rows; ++row) {
        sums_[index(call, head, row)] += static_cast<double>(*next++);
      }
    }
    ++positions_[static_cast<std::size_t>(call)];
  }
}

double depth_map::mean(int call, int head, int row) const
{
  return sums_[index(call, head, row)] /
         static_cast<double>(positions_[static_cast<std::size_t>(call)]);
}

}  // namespace quickstart
