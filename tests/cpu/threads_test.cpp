// SPDX-License-Identifier: Apache-2.0
//! Several host threads on the CPU backend: the same inputs, outputs and workspaces of their own.
#include "cpu/cpu_runs.hpp"
#include "support/host_buffer.hpp"
#include "support/shared_calls.hpp"

#include <mhar/cpu/aligned_memory.hpp>

#include <atomic>

using namespace mhar_test;

namespace {

struct cpu_runner
{
  mhar::cpu::executor run;

  template <class Problem>
  void route(const Problem& problem) const
  {
    const mhar::cpu::aligned_memory memory{workspace_bytes(problem, mhar::cpu::context{})};
    mhar::check(mhar::cpu::route(problem, memory.context(run)));
  }
  template <class Problem>
  void route_gradient(const Problem& problem) const
  {
    const mhar::cpu::aligned_memory memory{workspace_bytes(problem, mhar::cpu::context{})};
    mhar::check(mhar::cpu::route_gradient(problem, memory.context(run)));
  }
};

const std::vector<mhar::shape> shapes = {{40, 48, 3, 0}, {3, 513, 9, 0}, {1, 8, 1, 0}};

}  // namespace

TEST_CASE("cpu: two threads on the same inputs get the bits of one")
{
  random_inputs random{271};
  mhar::cpu::thread_pool pool{3};
  for (const mhar::cpu::executor run : {mhar::cpu::executor{}, pool.get()}) {
    const auto prepare = [run] { return cpu_runner{run}; };
    CHECK(different_results<float, host_buffer>(shapes, 20, random, prepare) == 0);
    CHECK(different_results<mhar::bfloat16, host_buffer>(shapes, 20, random, prepare) == 0);
  }
}

TEST_CASE("cpu: a loop inside a task of the same pool ends")
{
  struct counter
  {
    mhar::cpu::thread_pool pool{3};
    std::atomic<int> tasks{0};
  } all;
  all.pool.get()(
      5,
      [](void* outer, int) {
        auto& inner = *static_cast<counter*>(outer);
        inner.pool.get()(
            7, [](void* counts, int) { ++static_cast<counter*>(counts)->tasks; }, &inner);
      },
      &all);
  CHECK(all.tasks == 35);
}
