// SPDX-License-Identifier: Apache-2.0
//! depth_plan: the dynamic programme against known bytes and against brute force, the forest,
//! schedules, refusals.
#include "random_plan.hpp"

#include "support/random.hpp"

#include <mhar/router/router_config.hpp>
#include <mhar/tuning/sweep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <tuple>
#include <vector>

using mhar_test::random_inputs;
using mhar_test::random_members;

namespace {

//! Bytes per element of one [P, d] row: rows and outputs of 2 bytes, states of `part` bytes;
//! backward a row is read again.
mhar::plan_costs element_costs(int part)
{
  mhar::plan_costs costs;
  costs.forward = {2, part, 0, 2, 0};
  costs.backward = {2, part, 2, 2, 0};
  return costs;
}

std::vector<int> top_level(const mhar::sweep_plan& plan)
{
  std::vector<int> sizes;
  for (int member = 0; member < plan.size(); member += plan.pass(member).num_members) {
    sizes.push_back(plan.pass(member).num_members);
  }
  return sizes;
}

//! What a plan costs when a pass costs at least costs.launch, and costs.long_pass more when it is long.
std::int64_t cost_of(const mhar::sweep_plan& plan, const mhar::sweep_costs& costs)
{
  std::int64_t total = 0;
  for (int member = 0; member < plan.size(); ++member) {
    const mhar::sweep_pass& pass = plan.pass(member);
    const int read = pass.start == mhar::pass_start::kept ? pass.num_members : 0;
    const std::int64_t extra = pass.num_items > costs.short_items ? costs.long_pass : 0;
    total += std::max(costs.launch, costs.item * pass.num_items + costs.member * pass.num_members +
                                        costs.output + costs.state * (read + pass.num_members - 1) +
                                        extra);
  }
  return total;
}

//! Calls `visit` with every forest over `size` members.
template <class Visit>
void each_forest(std::vector<int>& members, const std::vector<int>& num_items, Visit visit)
{
  if (members.size() == num_items.size()) {
    if (mhar::validate(num_items, members).ok()) { visit(members); }
    return;
  }
  for (int count = 1; count <= static_cast<int>(num_items.size() - members.size()); ++count) {
    members.push_back(count);
    each_forest(members, num_items, visit);
    members.pop_back();
  }
}

}  // namespace

TEST_CASE("plan: least bytes of full mode, both sweeps, are the known ones")
{
  struct known
  {
    int num_calls, part;
    std::int64_t forward, backward;
  };
  for (const known each :
       {known{25, 2, 308, 402}, known{25, 4, 388, 470}, known{49, 2, 724, 944},
        known{49, 4, 944, 1136}, known{73, 2, 1194, 1548}, known{73, 4, 1578, 1884},
        known{193, 2, 3904, 5020}, known{193, 4, 5288, 6254}}) {
    const mhar::plan_costs costs = element_costs(each.part);
    const mhar::depth_plan plan = mhar::cheapest_plan(mhar::full_schedule(each.num_calls), costs);
    CHECK(plan.forward.bytes(costs.forward) == each.forward);
    CHECK(plan.backward.bytes(costs.backward) == each.backward);
  }
}

TEST_CASE("plan: the top level of full mode grows with the history")
{
  const auto plan = mhar::cheapest_plan(mhar::full_schedule(73), element_costs(2));
  CHECK(top_level(plan.forward) == std::vector<int>{1, 1, 1, 2, 5, 8, 13, 21, 21});
  CHECK(plan.forward.num_slots() == 20);  // 1, 1, 1, 2, 3, 5, 8, 18, 34 moves as many bytes
  CHECK(plan.backward.num_slots() == 18);
  const auto wide = mhar::cheapest_plan(mhar::full_schedule(73), element_costs(4));
  CHECK(top_level(wide.forward) == std::vector<int>{1, 1, 1, 1, 1, 2, 3, 4, 5, 7, 10, 18, 19});
}

TEST_CASE("plan: no forest is cheaper, nor as cheap with fewer slots")
{
  random_inputs random{101};
  for (int round = 0; round < 40; ++round) {
    const int size = static_cast<int>(random.integer(1, 7));
    std::vector<int> num_items;
    int items = static_cast<int>(random.integer(0, 3));
    for (int member = 0; member < size; ++member) {
      num_items.push_back(items += static_cast<int>(random.integer(0, 3)));
    }
    mhar::sweep_costs costs{random.integer(1, 5), random.integer(0, 5), random.integer(0, 3),
                            random.integer(0, 3), random.integer(0, 1) * random.integer(0, 30)};
    costs.short_items = static_cast<int>(random.integer(0, 4));
    costs.long_pass = random.integer(0, 1) * random.integer(0, 20);
    const int limit = static_cast<int>(random.integer(1, 8));
    const mhar::sweep_plan best{num_items, mhar::cheapest_passes(num_items, costs, limit)};
    CHECK(best.max_members() <= limit);
    const auto key = [&costs](const mhar::sweep_plan& plan) {
      return std::make_tuple(cost_of(plan, costs), plan.bytes(costs), plan.num_slots());
    };
    auto least = key(best);
    std::vector<int> members;
    each_forest(members, num_items, [&](const std::vector<int>& forest) {
      const mhar::sweep_plan other{num_items, forest};
      if (other.max_members() <= limit) { least = std::min(least, key(other)); }
    });
    CHECK((key(best) == least));
  }
}

TEST_CASE("plan: what a launch costs as least decides between plans, and bytes between equals")
{
  mhar::plan_costs costs = element_costs(4);
  const auto by_bytes = mhar::cheapest_plan(mhar::full_schedule(49), costs);
  costs.forward.launch = 40;
  const auto by_cost = mhar::cheapest_plan(mhar::full_schedule(49), costs);
  CHECK(cost_of(by_cost.forward, costs.forward) < cost_of(by_bytes.forward, costs.forward));
  CHECK(by_cost.forward.bytes(costs.forward) > by_bytes.forward.bytes(costs.forward));
  costs.forward.launch = 1000;
  const auto all_equal = mhar::cheapest_plan(mhar::full_schedule(49), costs);
  CHECK(all_equal.forward.bytes(costs.forward) == by_bytes.forward.bytes(costs.forward));
}

TEST_CASE("plan: the passes of a member go over its items once, in order, and its state has a slot")
{
  random_inputs random{102};
  for (int round = 0; round < 50; ++round) {
    const int size = static_cast<int>(random.integer(1, 20));
    std::vector<int> num_items;
    int items = 0;
    for (int member = 0; member < size; ++member) {
      num_items.push_back(items += static_cast<int>(random.integer(0, 2)));
    }
    const mhar::sweep_plan plan{num_items, random_members(size, random)};
    for (int member = 0; member < size; ++member) {
      int next_item = 0;
      int opener = plan.first_pass(member);
      const int segment = opener;
      CHECK(plan.pass(opener).start == mhar::pass_start::fresh);
      for (;; opener = plan.next_pass(member, opener)) {
        const mhar::sweep_pass& pass = plan.pass(opener);
        CHECK(pass.first_item == next_item);
        next_item += pass.num_items;
        CHECK((pass.start == mhar::pass_start::kept) == (opener != segment));
        if (member != segment) {
          const int slot = pass.first_slot + member - opener;
          CHECK(slot == member - segment - 1);
          CHECK(slot < plan.num_slots());
        }
        if (opener == member) { break; }
      }
      CHECK(next_item == num_items[static_cast<std::size_t>(member)]);
    }
  }
}

TEST_CASE("plan: rows and calls are exchanged in the backward")
{
  const auto delta = mhar::delta_schedule(7, 3);
  CHECK(delta.num_rows == std::vector<int>{0, 0, 0, 1, 1, 1, 2});
  CHECK(mhar::backward_items(delta) == std::vector<int>{1, 4});
  const auto block = mhar::block_schedule(5, 2);
  CHECK(block.num_rows == std::vector<int>{1, 1, 2, 2, 3});
  CHECK(block.has_private(3));
  CHECK_FALSE(block.has_private(4));
  CHECK(mhar::backward_items(block) == std::vector<int>{1, 3, 5});
  const auto plan = mhar::streaming_plan(block);
  CHECK(plan.first_reader(0) == 0);
  CHECK(plan.first_reader(1) == 2);
  CHECK(plan.first_reader(3) == 5);
  const auto twice = mhar::repeated(block, 2);
  CHECK(twice.num_rows == std::vector<int>{1, 1, 1, 1, 2, 2, 2, 2, 3, 3});
  CHECK(twice.has_private(3));
}

TEST_CASE("plan: the calls of a delta block share one pass over its rows")
{
  const auto costs = mhar::costs_of({8192, 4096, 8}, mhar::element::bfloat16,
                                    mhar::element::bfloat16, mhar::element::bfloat16);
  const auto plan = mhar::cheapest_plan(mhar::delta_schedule(64, 8), costs);
  for (int block = 3; block < 8; ++block) { CHECK(plan.forward.pass(8 * block).num_members >= 8); }
}

TEST_CASE("plan: what a long pass costs besides its bytes makes long passes fewer")
{
  const auto num_long = [](const mhar::sweep_plan& plan, int short_items) {
    int count = 0;
    for (int member = 0; member < plan.size(); ++member) {
      count += plan.pass(member).num_items > short_items ? 1 : 0;
    }
    return count;
  };
  const mhar::shape extent{1024, 1280, 8};
  constexpr auto type = mhar::element::bfloat16;
  const mhar::plan_costs costs = mhar::gpu_costs_of(extent, type, type, type);
  // A long pass is one that the kernel with calls in registers does not take.
  CHECK(costs.backward.short_items == mhar::tuning::sweep_policy::short_range);
  mhar::plan_costs bytes = costs;
  bytes.backward.long_pass = 0;
  const auto schedule = mhar::full_schedule(73);
  const auto plan = mhar::cheapest_plan(schedule, costs);
  const auto by_bytes = mhar::cheapest_plan(schedule, bytes);
  CHECK(num_long(plan.backward, costs.backward.short_items) <
        num_long(by_bytes.backward, costs.backward.short_items));
  CHECK(plan.backward.max_members() <= 16);
  // Other kernels have no such step.
  CHECK(mhar::gpu_costs_of({1024, 2048, 8}, type, type, type).backward.long_pass == 0);
  constexpr auto wide = mhar::element::float32;
  CHECK(mhar::gpu_costs_of(extent, wide, wide, wide).backward.long_pass == 0);
}

TEST_CASE("plan: deep models are planned at once")
{
  const auto start = std::chrono::steady_clock::now();
  CHECK(mhar::cheapest_plan(mhar::full_schedule(400), element_costs(2)).forward.size() == 400);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  CHECK(taken.count() < 5);
}

TEST_CASE("plan: what is no schedule and no forest is refused by name")
{
  const auto refusal = [](const mhar::status& outcome) { return outcome.code; };
  CHECK(refusal(mhar::validate(mhar::depth_schedule{})) == mhar::code::bad_shape);
  CHECK(refusal(mhar::validate(mhar::depth_schedule{{1, 0}, {}})) == mhar::code::bad_shape);
  CHECK(refusal(mhar::validate(mhar::depth_schedule{{-1}, {}})) == mhar::code::bad_shape);
  CHECK(refusal(mhar::validate(mhar::depth_schedule{{1, 2}, {mhar::private_row::absent}})) ==
        mhar::code::bad_shape);
  const std::vector<int> items{1, 2, 3};
  CHECK(mhar::validate(items, {3, 2, 1}).ok());
  CHECK(refusal(mhar::validate(items, {3, 2})) == mhar::code::bad_shape);
  CHECK(refusal(mhar::validate(items, {4, 1, 1})) == mhar::code::bad_value);
  CHECK(refusal(mhar::validate(items, {1, 0, 1})) == mhar::code::bad_value);
  CHECK(refusal(mhar::validate(items, {2, 2, 1})) == mhar::code::bad_value);
  CHECK_THROWS_AS((mhar::sweep_plan{items, {2, 2, 1}}), mhar::invalid_argument);
  CHECK_THROWS_AS(static_cast<void>(mhar::streaming_plan({})), mhar::invalid_argument);
  // With one member the search divided by -5 + 3 + 2.
  for (const std::vector<int>& refused : {std::vector<int>{-5}, {3, 2}}) {
    CHECK_THROWS_AS(static_cast<void>(mhar::cheapest_passes(refused, {1, 1, 1, 1, 1})),
                    mhar::invalid_argument);
  }
  CHECK_THROWS_AS(static_cast<void>(mhar::delta_schedule(4, 0)), mhar::invalid_argument);
  CHECK_THROWS_AS(static_cast<void>(mhar::block_schedule(4, -1)), mhar::invalid_argument);
  const auto full = mhar::full_schedule(2);
  CHECK_THROWS_AS(static_cast<void>(mhar::repeated(full, 0)), mhar::invalid_argument);
  CHECK_THROWS_AS(static_cast<void>(mhar::repeated({{1, 2}, {mhar::private_row::present}}, 2)),
                  mhar::invalid_argument);
}

TEST_CASE("plan: extents that mean nothing have no costs, and the router says what is wrong")
{
  for (const mhar::shape& extent : {mhar::shape{4, 64, 0}, mhar::shape{-1, 64, 1},
                                    mhar::shape{std::int64_t{1} << 40, std::int64_t{1} << 30, 1}}) {
    CAPTURE(extent.num_heads);
    mhar::router_config config;
    config.extent = extent;
    config.plan =
        mhar::cheapest_plan(mhar::full_schedule(3),
                            mhar::gpu_costs_of(extent, mhar::element::bfloat16,
                                               mhar::element::bfloat16, mhar::element::bfloat16));
    const std::string argument = mhar::validate<mhar::bfloat16>(config).argument;
    CHECK(argument == (extent.num_heads == 0 ? "extent.num_heads" : "extent.num_positions"));
  }
}
