// SPDX-License-Identifier: Apache-2.0
//! Random forests of passes: any split at any depth. `Random` has integer(low, high).
#pragma once

#include <mhar/router/depth_plan.hpp>

#include <vector>

namespace mhar_test {

template <class Random>
void add_random_members(int size, Random& random, std::vector<int>& members)
{
  while (size > 0) {
    const int count = static_cast<int>(random.integer(1, size));
    members.push_back(count);
    add_random_members(count - 1, random, members);
    size -= count;
  }
}

template <class Random>
std::vector<int> random_members(int size, Random& random)
{
  std::vector<int> members;
  add_random_members(size, random, members);
  return members;
}

template <class Random>
mhar::depth_plan random_plan(const mhar::depth_schedule& schedule, Random& random)
{
  return mhar::custom_plan(schedule, random_members(schedule.num_calls(), random),
                           random_members(schedule.total_rows(), random));
}

}  // namespace mhar_test
