// SPDX-License-Identifier: Apache-2.0
//! Random forests of passes: any split at any depth.
#pragma once

#include "support/random.hpp"

#include <mhar/router/depth_plan.hpp>

#include <vector>

namespace mhar_test {

inline void add_random_members(int size, random_inputs& random, std::vector<int>& members)
{
  while (size > 0) {
    const int count = static_cast<int>(random.integer(1, size));
    members.push_back(count);
    add_random_members(count - 1, random, members);
    size -= count;
  }
}

inline std::vector<int> random_members(int size, random_inputs& random)
{
  std::vector<int> members;
  add_random_members(size, random, members);
  return members;
}

inline mhar::depth_plan random_plan(const mhar::depth_schedule& schedule, random_inputs& random)
{
  return mhar::custom_plan(schedule, random_members(schedule.num_calls(), random),
                           random_members(schedule.total_rows(), random));
}

}  // namespace mhar_test
