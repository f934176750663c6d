// SPDX-License-Identifier: Apache-2.0
//! The smallest program: one position, three rows of depth, two heads, one routing call on the CPU.
#include <mhar/cpu/aligned_memory.hpp>
#include <mhar/cpu/route.hpp>

#include <cstdio>
#include <vector>

int main()
{
  const std::vector<float> rows{0, 1, 3, 0,   // [3, 1, 4]: what three layers have written
                                2, 1, 0, 3,   //
                                0, 1, 0, 0};  //
  const std::vector<float> query{9, 0, 0,
                                 0};  // head 0 looks for a large first number, head 1 for nothing
  std::vector<float> mixed(4);

  mhar::route_problem<float> problem;
  problem.extent = {1, 4, 2};  // positions, width, heads
  problem.num_rows = 3;
  problem.rows = mhar::source_major(rows.data(), 1, 4);
  problem.site.query = query.data();
  problem.outputs.y = {mixed.data(), 4};

  const mhar::cpu::aligned_memory workspace{mhar::cpu::workspace_bytes(problem, {})};
  mhar::check(mhar::cpu::route(problem, workspace.context()));

  std::printf("head 0: %.3f %.3f  (row 1, whose first number is large)\n", mixed[0], mixed[1]);
  std::printf("head 1: %.3f %.3f  (no preference: the mean of all rows)\n", mixed[2], mixed[3]);
}
