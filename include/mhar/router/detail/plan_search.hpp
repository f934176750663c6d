// SPDX-License-Identifier: Apache-2.0
//! The dynamic programme behind cheapest_passes (docs/sweeps.md, eq. S8 to S10).
#pragma once

#include <mhar/router/depth_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>

MHAR_NAMESPACE_BEGIN

namespace detail {

//! Costs and choices of every node: node (i, j) holds members [i, j), whose states know what member
//! i-1 knew when it was finished. Its last child opens at member c = split(i, j) and takes members
//! [c, j); the children before it are node (i, c).
class plan_search
{
public:
  plan_search(const std::vector<int>& num_items, const sweep_costs& costs, int max_members)
      : items_{num_items},
        costs_{in_range(costs, num_items)},
        size_{static_cast<int>(num_items.size())},
        max_members_{(std::max)(max_members, 1)},
        nodes_(static_cast<std::size_t>(size_ + 1) * static_cast<std::size_t>(size_ + 1)),
        roots_(static_cast<std::size_t>(size_ + 1)),
        members_(static_cast<std::size_t>(size_), 1)
  {
  }

  std::vector<int> run()
  {
    for (int length = 1; length < size_; ++length) {
      for (int i = 1; i + length <= size_; ++i) { solve_node(i, i + length); }
    }
    for (int first = size_ - 1; first >= 0; --first) { solve_root(first); }
    for (int first = 0; first < size_; first = root(first).split) {
      take_child(first, root(first).split);
    }
    return members_;
  }

private:
  //! Costs compare first. Between equals bytes decide, which a launch may hide, and then the
  //! members of the largest fresh pass, which the slots are counted by.
  struct choice
  {
    std::int64_t cost = 0;
    std::int64_t bytes = 0;
    int largest = 0;
    int split = 0;
  };

  choice& node(int i, int j) noexcept
  {
    return nodes_[static_cast<std::size_t>(i) * static_cast<std::size_t>(size_ + 1) +
                  static_cast<std::size_t>(j)];
  }
  choice& root(int first) noexcept { return roots_[static_cast<std::size_t>(first)]; }
  [[nodiscard]] std::int64_t items(int member) const noexcept
  {
    return items_[static_cast<std::size_t>(member)];
  }

  //! The costs, or, where those of a whole plan would not fit 64 bits, in a larger unit.
  static sweep_costs in_range(sweep_costs costs, const std::vector<int>& num_items) noexcept
  {
    const auto members = static_cast<std::int64_t>(num_items.size());
    const std::int64_t range = num_items.empty() ? 0 : num_items.back();
    constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
    std::int64_t* const all[] = {&costs.item,   &costs.state,  &costs.member,
                                 &costs.output, &costs.launch, &costs.long_pass};
    for (std::int64_t* const largest : all) {
      while (*largest > most / (range + 3 * members + 3) / (members + 1)) {
        for (std::int64_t* const each : all) { *each /= 2; }
      }
    }
    return costs;
  }

  //! A pass over `num_items` items for `count` members, then everything that its kept members still
  //! need, then `rest`.
  choice open(std::int64_t num_items, int count, int states_read, const choice& inside,
              const choice& rest, int split) const noexcept
  {
    const std::int64_t bytes = costs_.item * num_items + costs_.member * count + costs_.output +
                               costs_.state * (states_read + count - 1);
    const std::int64_t extra = num_items > costs_.short_items ? costs_.long_pass : 0;
    return {(std::max)(bytes + extra, costs_.launch) + inside.cost + rest.cost,
            bytes + inside.bytes + rest.bytes, (std::max)(count, rest.largest), split};
  }

  static void keep_cheaper(choice& best, const choice& other) noexcept
  {
    const auto key = [](const choice& of) { return std::tie(of.cost, of.bytes, of.largest); };
    if (key(other) < key(best)) { best = other; }
  }

  void solve_node(int i, int j)
  {
    choice best{(std::numeric_limits<std::int64_t>::max)(), 0, 0, 0};
    for (int c = (std::max)(i, j - (std::min)(max_members_, j)); c < j; ++c) {
      keep_cheaper(best,
                   open(items(c) - items(i - 1), j - c, j - c, node(c + 1, j), node(i, c), c));
    }
    node(i, j) = best;
  }

  void solve_root(int first)
  {
    choice best{(std::numeric_limits<std::int64_t>::max)(), 0, 0, 0};
    for (int next = first + 1; next <= size_ && next - first <= max_members_; ++next) {
      keep_cheaper(best,
                   open(items(first), next - first, 0, node(first + 1, next), root(next), next));
    }
    root(first) = best;
  }

  //! Member `first` opens a pass for [first, next); the children of what it keeps follow from the
  //! last to the first.
  void take_child(int first, int next)
  {
    members_[static_cast<std::size_t>(first)] = next - first;
    for (int end = next; end > first + 1;) {
      const int child = node(first + 1, end).split;
      take_child(child, end);
      end = child;
    }
  }

  const std::vector<int>& items_;
  const sweep_costs costs_;
  const int size_;
  const int max_members_;
  std::vector<choice> nodes_;
  std::vector<choice> roots_;
  std::vector<int> members_;
};

}  // namespace detail

inline std::vector<int> cheapest_passes(const std::vector<int>& num_items, const sweep_costs& costs,
                                        int max_members)
{
  check(validate(num_items, std::vector<int>(num_items.size(), 1)));
  return detail::plan_search{num_items, costs, max_members}.run();
}

MHAR_NAMESPACE_END
