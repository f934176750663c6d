// SPDX-License-Identifier: Apache-2.0
//! What the routing of a trained model reads: the mean depth weight of every call, head and row.
#pragma once

#include <mhar/analysis/heads.hpp>

#include <vector>

namespace quickstart {

//! The library's means of one call and batch, put together for all calls and several batches.
class depth_map
{
public:
  depth_map(int num_calls, int num_heads);
  //! Adds the weights of one call on one batch; batches are of equal size.
  void add(int call, const mhar::analysis::depth_weights<float>& weights);

  [[nodiscard]] int num_calls() const { return static_cast<int>(calls_.size()); }
  [[nodiscard]] int num_heads() const { return calls_.front().sums.num_heads; }
  //! Over everything that was added; call c reads rows 0..c, and its weights sum to one in every
  //! head.
  [[nodiscard]] double mean(int call, int head, int row) const;

private:
  struct call_sums
  {
    mhar::analysis::head_map sums;
    int num_batches = 0;
  };
  std::vector<call_sums> calls_;
};

}  // namespace quickstart
