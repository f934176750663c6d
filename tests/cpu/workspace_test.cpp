// SPDX-License-Identifier: Apache-2.0
//! What the CPU backend says it needs: nothing for what it will refuse, never less than it uses, and a place for it.
#include "cpu/cpu_runs.hpp"
#include "fuzz/cpu_fuzz.hpp"
#include "fuzz/spoilt.hpp"
#include "support/workspace_overlaps.hpp"

#include <mhar/cpu/aligned_memory.hpp>
#include <mhar/cpu/backend.hpp>
#include <mhar/cpu/merge.hpp>

#include <limits>
#include <string>
#include <utility>

using namespace mhar_test;

TEST_CASE("cpu: extents that mean nothing need no workspace, and the call says what is wrong")
{
  using limits_64 = std::numeric_limits<std::int64_t>;
  const mhar::shape shapes[] = {{-1, 8, 2, 0},
                                {3, 0, 1, 0},
                                {3, -8, 2, 0},
                                {3, 8, 0, 0},
                                {3, 8, -2, 0},
                                {3, 8, 3, 0},
                                {3, 8, 2, 4},
                                {(limits_64::max)(), (limits_64::max)(), 1, 0},
                                {(limits_64::min)(), 8, 2, 0}};
  for (const mhar::shape& extent : shapes) {
    mhar::route_problem<float> forward;
    forward.extent = extent;
    forward.num_rows = 2;
    std::vector<char> none(workspace_bytes(forward, mhar::cpu::context{}));
    CHECK(none.empty());
    const mhar::status outcome = mhar::cpu::route(forward, {{}, none.data(), none.size()});
    CHECK(std::string{outcome.argument}.substr(0, 7) == "extent.");
    mhar::route_gradient_problem<float> backward;
    backward.extent = extent;
    backward.num_rows = 2;
    CHECK(workspace_bytes(backward, mhar::cpu::context{}) == 0);
    mhar::merge_problem<float> merge;
    merge.extent = extent;
    merge.num_parts = 2;
    CHECK(workspace_bytes(merge, mhar::cpu::context{}) == 0);
    mhar::sweep_limits limits;
    limits.extent = extent;
    CHECK(mhar::cpu::backend::workspace_bytes<float>(limits) == 0);
  }
  mhar::route_problem<float> negative;
  negative.extent = {3, 8, 2, 0};
  negative.num_rows = (std::numeric_limits<int>::min)();
  CHECK(workspace_bytes(negative, mhar::cpu::context{}) == 0);
}

TEST_CASE("cpu: a call that no memory could serve is refused, not served by too little")
{
  mhar::route_problem<double> huge;
  huge.extent = {1, std::int64_t{1} << 30, 1 << 30, 0};
  huge.num_rows = (std::numeric_limits<int>::max)();
  CHECK(workspace_bytes(huge, mhar::cpu::context{}) == (std::numeric_limits<std::size_t>::max)());
}

TEST_CASE("cpu: aligned memory is aligned, moves, and is a context")
{
  mhar::cpu::aligned_memory memory{1000};
  CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % 256 == 0);
  CHECK(memory.size() == 1000);
  CHECK(memory.context().workspace == memory.data());
  CHECK(memory.context().workspace_bytes == 1000);
  void* const data = memory.data();
  mhar::cpu::aligned_memory moved{std::move(memory)};
  CHECK(moved.data() == data);
  mhar::cpu::aligned_memory other;
  CHECK(other.data() == nullptr);
  other = std::move(moved);
  CHECK(other.data() == data);
}

TEST_CASE("cpu: a workspace over an array of a call is refused and nothing is written")
{
  random_inputs random{291};
  const auto run = [](const auto& problem, void* workspace, std::size_t bytes) {
    return call_verb(problem, mhar::cpu::context{{}, workspace, bytes});
  };
  refuses_workspace_over_arrays<float, cpu_fuzz_memory>(random, run);
  refuses_workspace_over_arrays<mhar::bfloat16, cpu_fuzz_memory>(random, run);
}
