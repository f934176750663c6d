// SPDX-License-Identifier: Apache-2.0
//! Plans of a model pass (docs/sweeps.md, eq. S6 to S10): which calls share a pass, and what it
//! costs.
#pragma once

#include <mhar/status.hpp>
#include <mhar/types/element.hpp>
#include <mhar/types/shape.hpp>
#include <mhar/types/sweep.hpp>

#include <cstdint>
#include <vector>

MHAR_NAMESPACE_BEGIN

//! Whether a call has a private last row besides the shared ones.
enum class private_row : std::uint8_t
{
  absent,
  present
};

//! What every call of a model pass reads: call c reads the shared rows [0, num_rows[c]) and its
//! private row, if any. num_rows never decreases; the rows of a pass are [0, num_rows.back()).
struct depth_schedule
{
  std::vector<int> num_rows;
  std::vector<private_row> private_rows;  //!< [S], or empty when no call has one

  [[nodiscard]] int num_calls() const noexcept { return static_cast<int>(num_rows.size()); }
  [[nodiscard]] int total_rows() const noexcept { return num_rows.empty() ? 0 : num_rows.back(); }
  [[nodiscard]] bool has_private(int call) const noexcept
  {
    return !private_rows.empty() &&
           private_rows[static_cast<std::size_t>(call)] == private_row::present;
  }
};

//! Full mode: call c reads rows 0..c.
[[nodiscard]] depth_schedule full_schedule(int num_calls);

//! Delta mode: a call reads the completed blocks; the calls of the first block read none (their
//! null source alone). Throws invalid_argument when a block has no call.
[[nodiscard]] depth_schedule delta_schedule(int num_calls, int calls_per_block);

//! Block mode: a call reads the embedding and the completed blocks, and but for the first call of a
//! block the running sum as its private row. Throws invalid_argument when a block has no call.
[[nodiscard]] depth_schedule block_schedule(int num_calls, int calls_per_block);

//! The same schedule with every call `queries_per_site` times in a row: the queries of one site are
//! adjacent calls. Throws invalid_argument when there is none, or for a refused schedule.
[[nodiscard]] depth_schedule repeated(const depth_schedule& schedule, int queries_per_site);

//! num_rows is not negative and does not decrease; private_rows is empty or as long.
[[nodiscard]] status validate(const depth_schedule& schedule) noexcept;

//! One pass of a sweep: reads items [first_item, first_item + num_items) once for members [m, m +
//! num_members), m being the member that opens it.
//!
//! Forward a member is a call and an item a row. Backward a member is a row and an item a call,
//! both counted from the last one down: member i is row N-1-i, item j is call S-1-j.
struct sweep_pass
{
  int num_members = 1;
  int first_item = 0;
  int num_items = 0;
  pass_start start = pass_start::fresh;
  int first_slot =
      -1;  //!< of the opening member; -1 when the pass is fresh: that member is finished at once
};

//! What the parts of a pass cost, in bytes (in any one unit: a plan depends on ratios only).
struct sweep_costs
{
  std::int64_t item = 0;   //!< an item is read
  std::int64_t state = 0;  //!< a state is read, or written
  std::int64_t member =
      0;  //!< a member takes part in a pass (backward: it reads its own row again)
  std::int64_t output = 0;  //!< a member is finished
  std::int64_t launch =
      0;                //!< the least that a pass costs: what memory moves during an empty launch
  int short_items = 0;  //!< a pass over more items costs `long_pass` besides
  std::int64_t long_pass = 0;
};

//! A sweep of M members, of which member i is finished when items [0, num_items[i]) are known, as a
//! forest of passes: every member opens exactly one pass, and the members of a pass lie within
//! those of every pass that encloses it.
//!
//! A forest is therefore just one number per member, how many members its pass has: {1, 1, 1} goes
//! over everything again for every member; {3, 1, 1} reads the first items once for all three; {3,
//! 2, 1} also shares what the last two still lack.
class sweep_plan
{
public:
  sweep_plan() = default;
  //! Throws invalid_argument when validate refuses.
  sweep_plan(std::vector<int> num_items, const std::vector<int>& num_members);

  [[nodiscard]] int size() const noexcept { return static_cast<int>(passes_.size()); }
  [[nodiscard]] const sweep_pass& pass(int member) const noexcept
  {
    return passes_[static_cast<std::size_t>(member)];
  }
  //! Items that are known when the member is finished.
  [[nodiscard]] int num_items(int member) const noexcept
  {
    return num_items_[static_cast<std::size_t>(member)];
  }
  //! Items that are known when the member is finished and were not when the one before it was.
  [[nodiscard]] int num_new_items(int member) const noexcept
  {
    return num_items(member) - (member == 0 ? 0 : num_items(member - 1));
  }
  //! The pass after `opener` that the member takes part in; pass(member) is the last. Start from
  //! first_pass(member).
  [[nodiscard]] int next_pass(int member, int opener) const noexcept;
  //! The fresh pass that the member takes part in. The item ranges of its passes, in order, make up
  //! [0, num_items(member)).
  [[nodiscard]] int first_pass(int member) const noexcept { return next_pass(member, -1); }

  //! Slots that are live at the same time at most; slots [0, num_slots) are used.
  [[nodiscard]] int num_slots() const noexcept { return num_slots_; }
  [[nodiscard]] int max_members() const noexcept { return max_members_; }
  [[nodiscard]] int max_items() const noexcept { return max_items_; }
  //! Bytes that all passes move (launch costs are not bytes).
  [[nodiscard]] std::int64_t bytes(const sweep_costs& costs) const noexcept;

private:
  std::vector<int> num_items_;
  std::vector<sweep_pass> passes_;
  int num_slots_ = 0;
  int max_members_ = 1;
  int max_items_ = 1;
};

//! num_items does not decrease; every pass has at least one member and ends within the pass around
//! it.
[[nodiscard]] status validate(const std::vector<int>& num_items,
                              const std::vector<int>& num_members) noexcept;

//! The forest of least cost; among those the one of fewest bytes, and then of fewest slots. Dynamic
//! programming: O(M^3) time (25 ms at M = 193), O(M^2) memory. The members of a pass are at most
//! max_members, which bounds the slots by max_members - 1. Integer arithmetic: the same plan on
//! every machine. Throws invalid_argument when num_items decreases or is negative.
[[nodiscard]] std::vector<int> cheapest_passes(const std::vector<int>& num_items,
                                               const sweep_costs& costs, int max_members = 1 << 30);

//! The plan of a model pass. Same plan, same bits: it is part of what a result depends on.
struct depth_plan
{
  depth_schedule schedule;
  sweep_plan forward;   //!< calls over rows
  sweep_plan backward;  //!< rows over calls, both from the last down; empty without a backward

  [[nodiscard]] int num_calls() const noexcept { return schedule.num_calls(); }
  [[nodiscard]] int num_rows() const noexcept { return schedule.total_rows(); }
  //! The first call that reads the row; num_calls() for the row after the last.
  [[nodiscard]] int first_reader(int row) const noexcept;
};

//! Costs of both sweeps, and the largest pass that may be planned.
struct plan_costs
{
  sweep_costs forward;
  sweep_costs backward;
  int max_members = 1 << 30;
};

//! The bytes that the verbs move at an extent, with states kept as `call_state` and `row_state`.
//! `launch` is the bytes that memory could have moved during an empty launch: a pass costs at least
//! that, so that at small P, where most passes move less, the plan evens them out instead of saving
//! bytes that cost nothing. Of extents that mean nothing the costs are 0: a router refuses them.
[[nodiscard]] plan_costs costs_of(const shape& extent, element rows, element call_state,
                                  element row_state, std::int64_t launch = 0) noexcept;

//! The same for the CUDA backend's kernels: at most 16 members share a pass, and where passes run on
//! tensor cores (rows of 16 bits, at most 8 heads of 64, 128 or 160), a backward one over more calls
//! than go without tiles costs as much as three calls more (docs/design/sweeps-on-the-gpu.md).
[[nodiscard]] plan_costs gpu_costs_of(const shape& extent, element rows, element call_state,
                                      element row_state) noexcept;

//! How many calls know about each row's gradient, rows from the last down: the schedule of the
//! backward sweep.
[[nodiscard]] std::vector<int> backward_items(const depth_schedule& schedule);

//! The cheapest plan. Throws invalid_argument when the schedule is refused.
[[nodiscard]] depth_plan cheapest_plan(const depth_schedule& schedule, const plan_costs& costs);

//! One call (row) at a time: no states at all, and the bytes of the published algorithm's forward.
[[nodiscard]] depth_plan streaming_plan(const depth_schedule& schedule);

//! A plan of the caller's own: the members of every call's pass, and of every row's from the last
//! down.
[[nodiscard]] depth_plan custom_plan(const depth_schedule& schedule,
                                     const std::vector<int>& forward_members,
                                     const std::vector<int>& backward_members);

MHAR_NAMESPACE_END

#include <mhar/router/detail/depth_plan_impl.hpp>
#include <mhar/router/detail/plan_search.hpp>
