// SPDX-License-Identifier: Apache-2.0
//! Schedules, the forest of passes that a list of member counts stands for, and plans made of two
//! of them.
#pragma once

#include <mhar/router/depth_plan.hpp>
#include <mhar/types/detail/checker.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

MHAR_NAMESPACE_BEGIN

namespace detail {

inline void check_at_least_one(int count, const char* argument)
{
  if (count < 1) { check(status{code::bad_shape, argument, "must be at least 1"}); }
}

}  // namespace detail

inline depth_schedule full_schedule(int num_calls)
{
  depth_schedule schedule;
  for (int call = 0; call < num_calls; ++call) { schedule.num_rows.push_back(call + 1); }
  return schedule;
}

inline depth_schedule delta_schedule(int num_calls, int calls_per_block)
{
  detail::check_at_least_one(calls_per_block, "calls_per_block");
  depth_schedule schedule;
  for (int call = 0; call < num_calls; ++call) {
    schedule.num_rows.push_back(call / calls_per_block);
  }
  return schedule;
}

inline depth_schedule block_schedule(int num_calls, int calls_per_block)
{
  detail::check_at_least_one(calls_per_block, "calls_per_block");
  depth_schedule schedule;
  for (int call = 0; call < num_calls; ++call) {
    schedule.num_rows.push_back(1 + call / calls_per_block);
    schedule.private_rows.push_back(call % calls_per_block == 0 ? private_row::absent
                                                                : private_row::present);
  }
  return schedule;
}

inline depth_schedule repeated(const depth_schedule& schedule, int queries_per_site)
{
  detail::check_at_least_one(queries_per_site, "queries_per_site");
  check(validate(schedule));
  depth_schedule longer;
  for (int call = 0; call < schedule.num_calls(); ++call) {
    const auto index = static_cast<std::size_t>(call);
    const auto times = static_cast<std::size_t>(queries_per_site);
    longer.num_rows.insert(longer.num_rows.end(), times, schedule.num_rows[index]);
    if (!schedule.private_rows.empty()) {
      longer.private_rows.insert(longer.private_rows.end(), times, schedule.private_rows[index]);
    }
  }
  return longer;
}

inline status validate(const depth_schedule& schedule) noexcept
{
  if (schedule.num_rows.empty()) {
    return {code::bad_shape, "schedule.num_rows", "there is no call"};
  }
  if (schedule.num_rows.front() < 0 ||
      !std::is_sorted(schedule.num_rows.begin(), schedule.num_rows.end())) {
    return {code::bad_shape, "schedule.num_rows", "a call reads fewer rows than one before it"};
  }
  if (!schedule.private_rows.empty() && schedule.private_rows.size() != schedule.num_rows.size()) {
    return {code::bad_shape, "schedule.private_rows", "must be empty or have one entry per call"};
  }
  return {};
}

inline status validate(const std::vector<int>& num_items,
                       const std::vector<int>& num_members) noexcept
{
  if (num_items.size() != num_members.size()) {
    return {code::bad_shape, "num_members", "every member opens exactly one pass"};
  }
  if (!std::is_sorted(num_items.begin(), num_items.end()) ||
      (!num_items.empty() && num_items.front() < 0)) {
    return {code::bad_shape, "num_items", "must not decrease, nor be negative"};
  }
  const int size = static_cast<int>(num_items.size());
  for (int member = 0; member < size; ++member) {
    const int count = num_members[static_cast<std::size_t>(member)];
    if (count < 1 || count > size - member) {
      return {code::bad_value, "num_members",
              "a pass holds its opener and no member past the last"};
    }
    for (int inner = member + 1; inner < member + count; ++inner) {
      if (num_members[static_cast<std::size_t>(inner)] > member + count - inner) {
        return {code::bad_value, "num_members", "a pass must end within the pass around it"};
      }
    }
  }
  return {};
}

inline sweep_plan::sweep_plan(std::vector<int> num_items, const std::vector<int>& num_members)
    : num_items_{std::move(num_items)}
{
  check(validate(num_items_, num_members));
  const int size = static_cast<int>(num_members.size());
  passes_.resize(num_members.size());
  std::vector<int>
      enclosing;  // openers of the passes that hold the member at hand, outermost first
  for (int member = 0; member < size; ++member) {
    sweep_pass& opened = passes_[static_cast<std::size_t>(member)];
    opened.num_members = num_members[static_cast<std::size_t>(member)];
    while (!enclosing.empty() && enclosing.back() + pass(enclosing.back()).num_members <= member) {
      enclosing.pop_back();
    }
    if (!enclosing.empty()) {
      opened.start = pass_start::kept;
      opened.first_item = this->num_items(enclosing.back());
      opened.first_slot = member - enclosing.front() - 1;
    }
    opened.num_items = this->num_items(member) - opened.first_item;
    enclosing.push_back(member);
    num_slots_ = (std::max)(num_slots_, opened.num_members - 1);
    max_members_ = (std::max)(max_members_, opened.num_members);
    max_items_ = (std::max)(max_items_, opened.num_items);
  }
}

inline int sweep_plan::next_pass(int member, int opener) const noexcept
{
  ++opener;
  while (opener < member && opener + pass(opener).num_members <= member) { ++opener; }
  return opener;
}

inline std::int64_t sweep_plan::bytes(const sweep_costs& costs) const noexcept
{
  std::int64_t total = 0;
  for (const sweep_pass& each : passes_) {
    const int states_read = each.start == pass_start::kept ? each.num_members : 0;
    total += costs.item * each.num_items + costs.member * each.num_members + costs.output +
             costs.state * (states_read + each.num_members - 1);
  }
  return total;
}

inline int depth_plan::first_reader(int row) const noexcept
{
  const auto& num_rows = schedule.num_rows;
  return static_cast<int>(std::upper_bound(num_rows.begin(), num_rows.end(), row) -
                          num_rows.begin());
}

inline plan_costs costs_of(const shape& extent, element rows, element call_state, element row_state,
                           std::int64_t launch) noexcept
{
  if (!detail::has_sizes(extent)) { return {}; }
  const std::int64_t elements = extent.num_positions * extent.width;
  const std::int64_t arithmetic = rows == element::float64 ? 8 : 4;
  const std::int64_t per_position = extent.num_positions * arithmetic;
  const std::int64_t per_head = per_position * extent.num_heads;
  const std::int64_t row = elements * size_of(rows);
  plan_costs costs;
  // A row comes with its inverse rms, a call's state with its lse.
  costs.forward = {row + per_position, elements * size_of(call_state) + per_head, 0, row + per_head,
                   launch};
  // A call comes with its lse and D, a row's state with its head sum; a row that takes part is read
  // itself.
  costs.backward = {row + 2 * per_head, elements * size_of(row_state) + per_position,
                    row + per_position, row, launch};
  return costs;
}

inline plan_costs gpu_costs_of(const shape& extent, element rows, element call_state,
                               element row_state) noexcept
{
  plan_costs costs = costs_of(extent, rows, call_state, row_state, std::int64_t{10} << 20);
  costs.max_members = 16;
  if (!detail::has_sizes(extent)) { return costs; }
  const std::int64_t width = extent.head_width();
  if (size_of(rows) == 2 && extent.num_heads <= 8 &&
      (width == 64 || width == 128 || width == 160)) {
    costs.backward.short_items = 6;
    costs.backward.long_pass = 3 * costs.backward.item;
  }
  return costs;
}

inline std::vector<int> backward_items(const depth_schedule& schedule)
{
  std::vector<int> known;
  int reader = schedule.num_calls();
  for (int row = schedule.total_rows() - 1; row >= 0; --row) {
    while (reader > 0 && schedule.num_rows[static_cast<std::size_t>(reader - 1)] > row) {
      --reader;
    }
    known.push_back(schedule.num_calls() - reader);
  }
  return known;
}

inline depth_plan custom_plan(const depth_schedule& schedule,
                              const std::vector<int>& forward_members,
                              const std::vector<int>& backward_members)
{
  check(validate(schedule));
  return {schedule, sweep_plan{schedule.num_rows, forward_members},
          sweep_plan{backward_items(schedule), backward_members}};
}

inline depth_plan cheapest_plan(const depth_schedule& schedule, const plan_costs& costs)
{
  check(validate(schedule));
  return custom_plan(schedule, cheapest_passes(schedule.num_rows, costs.forward, costs.max_members),
                     cheapest_passes(backward_items(schedule), costs.backward, costs.max_members));
}

inline depth_plan streaming_plan(const depth_schedule& schedule)
{
  check(validate(schedule));
  return custom_plan(schedule, std::vector<int>(schedule.num_rows.size(), 1),
                     std::vector<int>(static_cast<std::size_t>(schedule.total_rows()), 1));
}

MHAR_NAMESPACE_END
