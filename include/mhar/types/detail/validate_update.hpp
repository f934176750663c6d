// SPDX-License-Identifier: Apache-2.0
//! Validation of a routing call with an update of one of its rows.
#pragma once

#include <mhar/types/update.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN

template <class T>
status validate(const update_problem<T>& problem, const workspace_view& workspace) noexcept
{
  const route_problem<T>& call = problem.call;
  const shape& extent = call.extent;
  detail::checker checks{workspace};
  const status outcome = validate(call, workspace);
  if (!outcome.ok()) { return outcome; }
  checks.require(problem.row >= 0 && problem.row < call.num_rows, code::bad_shape, "row",
                 "the updated row must be one of the call's");
  checks.require(problem.delta || extent.num_positions == 0, code::missing_argument, "delta",
                 "what is added is required");
  for (const matrix* target : {&problem.sum, &problem.copy}) {
    const char* const name = target == &problem.sum ? "sum" : "copy";
    checks.stored(target->mode, name);
    checks.require(!*target || target->type == element_of<T>::value, code::bad_value, name,
                   "the updated row is stored as an element of the rows");
  }
  if (!checks.ok() || extent.num_positions == 0) { return checks.answer(); }

  // Inputs and outputs of the call, as far as the new outputs could meet them.
  detail::region_list<4> written;
  const detail::region sum = checks.output(problem.sum, extent, "sum");
  const detail::region copy = checks.output(problem.copy, extent, "copy");
  written.add(sum);
  written.add(copy);
  const detail::region delta = checks.input(problem.delta, extent, "delta");
  detail::region_list<24> others;
  others.add(delta);
  const std::int64_t num_sources = std::int64_t{call.num_rows} + (call.site.null_source ? 1 : 0);
  detail::check_site<T>(checks, call.site, extent, num_sources, others);
  detail::check_stage<T>(checks, call.stage, extent, others);
  detail::region_list<8> outputs;
  detail::check_outputs(checks, call.outputs, extent, call.num_rows, num_sources, outputs);
  for (const detail::region& output : outputs) {
    checks.require(!overlap(output, delta), code::aliasing, output.name,
                   "the output overlaps an input");
    others.add(output);
  }
  checks.apart(others, written);
  for (int n = 0; checks.ok() && n < call.num_rows; ++n) {
    const detail::region row = checks.input(
        const_matrix{call.rows.row(n), call.rows.position_stride}, extent, "call.rows");
    checks.require(!overlap(sum, row) || (n == problem.row && sum.same_as(row)), code::aliasing,
                   "sum",
                   "the updated row overlaps a row without being exactly the one it updates");
    checks.require(!overlap(copy, row), code::aliasing, "copy", "the copy overlaps a row");
  }
  return checks.answer();
}

MHAR_NAMESPACE_END
