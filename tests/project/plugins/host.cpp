// SPDX-License-Identifier: Apache-2.0
//! A plugin that routes on the CPU: its number is the first element of a mean of rows 1 and 3, and its version.
#include <mhar/mhar.hpp>

#include <vector>

#define MHAR_PLUGIN_JOIN_(name) extern "C" __attribute__((visibility("default"))) int name()
#define MHAR_PLUGIN_JOIN(name) MHAR_PLUGIN_JOIN_(name)
MHAR_PLUGIN_JOIN(MHAR_PLUGIN);

MHAR_PLUGIN_JOIN(MHAR_PLUGIN)
{
  const std::vector<float> rows{1, 1, 1, 1, 3, 3, 3, 3};
  const std::vector<float> query(4, 0.0f);
  std::vector<float> y(4);
  mhar::route_problem<float> problem;
  problem.extent = {1, 4, 2};
  problem.num_rows = 2;
  problem.rows = mhar::source_major(rows.data(), 1, 4);
  problem.site.query = query.data();
  problem.outputs.y = {y.data(), 4};
  mhar::cpu::thread_pool threads{2};
  const mhar::cpu::aligned_memory workspace{mhar::cpu::workspace_bytes(problem, {})};
  if (!mhar::cpu::route(problem, workspace.context(threads.get())).ok()) { return -1; }
  return 100 * static_cast<int>(y[0]) + MHAR_VERSION_MINOR;
}
