// SPDX-License-Identifier: Apache-2.0
//! What all launchers of passes on tensor cores share, whatever the heads' width: what kernels are told
//! of a pass, and how it is cut.
#pragma once

#include <mhar/device/detail/sweep_tensor.cuh>

#include <algorithm>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Where the first member's state is; `values` are those of all slots.
template <class States>
[[nodiscard]] void* first_state(const States& states, void* values) noexcept
{
  return static_cast<char*>(values) + states.first_slot * states.slot_stride * size_of(states.type);
}

//! Pass is advance_tensor_params or advance_wide_params.
template <class T, class Pass>
void describe(const advance_problem<T>& problem, Pass& pass) noexcept
{
  const shape& extent = problem.extent;
  const std::int64_t positions = extent.num_positions;
  const const_rows<T> rows = rows_from(problem.rows, problem.first_row);
  pass.num_positions = positions;
  pass.width = extent.width;
  pass.num_heads = extent.num_heads;
  pass.queries = {problem.sites.packed, extent.width};
  pass.first_call = problem.first_call;
  pass.num_calls = problem.num_calls;
  pass.rows = rows.row(0);
  pass.row_stride = stride_of(rows, problem.num_rows);
  pass.position_stride = rows.position_stride;
  pass.num_rows = problem.num_rows;
  pass.inverse_rms = problem.inverse_rms + problem.first_row * positions;
  pass.kept = problem.start == pass_start::kept;
  if (!pass.kept && problem.sites.null_source != nullptr) {
    pass.null_source = problem.sites.null_source + problem.first_call * extent.width;
    pass.null_logit =
        problem.sites.null_logit + problem.first_call * std::int64_t{extent.num_heads};
  }
  pass.finishes = problem.end == pass_end::finish_first;
  pass.slot_stride = problem.states.slot_stride;
  if (problem.states.mix != nullptr) {
    pass.states = first_state(problem.states, problem.states.mix);
    pass.state_lse = problem.states.lse + problem.states.first_slot * positions * extent.num_heads;
  }
}

//! Pass is gather_tensor_params or gather_wide_params.
template <class T, class Pass>
void describe(const gather_problem<T>& problem, Pass& pass) noexcept
{
  const shape& extent = problem.extent;
  const std::int64_t positions = extent.num_positions;
  const const_rows<T> rows = rows_from(problem.rows, problem.top_row - problem.num_rows + 1);
  const const_rows<T> calls = rows_from(problem.call_gradients, problem.first_call);
  pass.num_positions = positions;
  pass.width = extent.width;
  pass.inverse_width = 1.0f / static_cast<float>(extent.full_width());
  pass.num_heads = extent.num_heads;
  pass.queries = {problem.sites.packed, extent.width};
  pass.gate = problem.sites.gate + problem.first_call;
  pass.logit_gate = problem.sites.logit_gate + problem.first_call;
  pass.first_call = problem.first_call;
  pass.num_calls = problem.num_calls;
  pass.call_gradients = calls.row(0);
  pass.call_stride = stride_of(calls, problem.num_calls);
  pass.call_position_stride = calls.position_stride;
  pass.lse = problem.lse + problem.first_call * positions * extent.num_heads;
  pass.dot = problem.dot + problem.first_call * positions * extent.num_heads;
  pass.rows = rows.row(problem.num_rows - 1);
  pass.row_stride = -stride_of(rows, problem.num_rows);
  pass.position_stride = rows.position_stride;
  pass.num_rows = problem.num_rows;
  pass.inverse_rms = problem.inverse_rms + problem.top_row * positions;
  pass.kept = problem.start == pass_start::kept;
  pass.finishes = problem.end == pass_end::finish_first;
  pass.slot_stride = problem.states.slot_stride;
  if (problem.states.gradient != nullptr) {
    pass.states = first_state(problem.states, problem.states.gradient);
    pass.head_sums = problem.states.head_sum + problem.states.first_slot * positions;
  }
  if (problem.partials.query != nullptr) {
    pass.query_sums = problem.partials.query + problem.first_call * extent.width;
    pass.chunk_stride = problem.partials.num_calls * extent.width;
  }
}

//! The first call of a pass alone: for the plain kernel, where no other ends it.
template <class T>
[[nodiscard]] advance_problem<T> first_call_of(advance_problem<T> problem) noexcept
{
  problem.num_calls = 1;
  return problem;
}

//! The pass without its first call, which has found the new rows' inverse rms.
template <class T>
[[nodiscard]] advance_problem<T> other_calls_of(advance_problem<T> problem) noexcept
{
  ++problem.first_call;
  --problem.num_calls;
  ++problem.states.first_slot;
  problem.num_new_rows = 0;
  problem.private_row = nullptr;
  problem.end = pass_end::keep_all;
  return problem;
}

//! launch_part(part) for at most `most` rows of a backward pass at a time, all over the same calls.
template <class T, class LaunchPart>
[[nodiscard]] status gather_in_parts(const gather_problem<T>& problem, int most,
                                     LaunchPart&& launch_part) noexcept
{
  for (int first = 0; first < problem.num_rows; first += most) {
    gather_problem<T> part = problem;
    part.top_row -= first;
    part.num_rows = (std::min)(problem.num_rows - first, most);
    part.states.first_slot += first;
    if (first > 0) {
      part.num_new_calls = 0;
      part.num_unread_calls = (std::min)(problem.num_unread_calls, 0);
      part.end = pass_end::keep_all;
    }
    const status launched = launch_part(part);
    if (!launched.ok()) { return launched; }
  }
  return {};
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
