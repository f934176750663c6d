// SPDX-License-Identifier: Apache-2.0
//! What the routing of a trained model reads: the mean depth weight of every call, head and row.
#pragma once

#include <cstdint>
#include <vector>

namespace quickstart {

//! Sums depth weights over positions and batches.
class depth_map
{
public:
  depth_map(int num_calls, int num_heads);
  //! Adds the weights [positions, heads, call + 1] of one call.
  void add(int call, const std::vector<float>& weights);

  [[nodiscard]] int num_calls() const { return num_calls_; }
  [[nodiscard]] int num_heads() const { return num_heads_; }
  //! Over everything that was added; call c reads rows 0..c, and its weights sum to one in every
  //! head.
  [[nodiscard]] double mean(int call, int head, int row) const;

private:
  [[nodiscard]] std::size_t index(int call, int head, int row) const;

  int num_calls_;
  int num_heads_;
  std::vector<double> sums_;             // [calls, heads, rows]
  std::vector<std::int64_t> positions_;  // [calls]
};

}  // namespace quickstart
