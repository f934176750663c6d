// SPDX-License-Identifier: Apache-2.0
//! Launches passes that read nothing: one that finishes a kept call without a row, and one that
//! finishes a kept row without a call.
#pragma once

#include <mhar/device/detail/advance_ending.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

template <class T>
[[nodiscard]] status advance_any(const advance_problem<T>& problem,
                                 const device_properties& properties,
                                 const context& where) noexcept;

//! A block per position; of two kernels the one for the states' type.
template <class T, class Params>
[[nodiscard]] status launch_per_position(const shape& extent, element states,
                                         const device_properties& properties, const context& where,
                                         void (*of_rows_type)(Params), void (*of_float)(Params),
                                         const Params& params) noexcept
{
  constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;  // blocks of a grid
  if (extent.num_positions > most) { return not_served(); }
  launch_shape shape;
  shape.grid = static_cast<unsigned>(extent.num_positions);
  shape.block = 256;
  return launch(where, properties, shape, states == element_of<T>::value ? of_rows_type : of_float,
                params);
}

//! A kept pass without rows: the first call's state is its mix, and the others' stay as they are.
template <class T>
[[nodiscard]] status finish_call(const advance_problem<T>& problem,
                                 const device_properties& properties, const context& where) noexcept
{
  const shape& extent = problem.extent;
  const bool is_served = problem.num_rows == 0 && problem.start == pass_start::kept &&
                         extent.width % 8 == 0 &&
                         are_tensor_states(problem.states.mix, problem.states.slot_stride);
  if (!is_served) { return not_served(); }
  if (problem.end != pass_end::finish_first) { return {}; }
  if (has_fast_heads(extent) && ends_in_registers(problem) && !ends_in_columns(problem)) {
    return end_call(problem, properties, where);
  }
  if (has_own_pass(problem)) { return advance_any(first_call_of(problem), properties, where); }
  block::finish_call_params<T> call;
  call.width = extent.width;
  call.num_heads = extent.num_heads;
  call.state = first_state(problem.states, problem.states.mix);
  call.state_lse =
      problem.states.lse + problem.states.first_slot * extent.num_positions * extent.num_heads;
  call.stage = stage_of(problem);
  call.lse = problem.outputs.lse;
  return launch_per_position<T>(extent, problem.states.type, properties, where,
                                &kernel::finish_call_kernel<T, T>,
                                &kernel::finish_call_kernel<T, float>, call);
}

//! A kept top row without calls: the norm's part is all that its gradient lacks. Of head widths that
//! the plain kernels serve these finish rows, too: bits then do not depend on where rows lie.
template <class T>
[[nodiscard]] status finish_row(const gather_problem<T>& problem,
                                const device_properties& properties, const context& where) noexcept
{
  const shape& extent = problem.extent;
  const const_rows<T> rows = rows_from(problem.rows, problem.top_row);
  const bool is_served = problem.num_calls == 0 && problem.num_rows == 1 &&
                         problem.start == pass_start::kept &&
                         problem.end == pass_end::finish_first && problem.row_gradient &&
                         has_fast_heads(extent) && are_vector_rows(rows, 1, extent) &&
                         are_tensor_states(problem.states.gradient, problem.states.slot_stride);
  if (!is_served) { return not_served(); }
  block::finish_row_params<T> row;
  row.width = extent.width;
  row.inverse_width = 1.0f / static_cast<float>(extent.full_width());
  row.row = rows.row(0);
  row.position_stride = rows.position_stride;
  row.state = first_state(problem.states, problem.states.gradient);
  row.head_sum = problem.states.head_sum + problem.states.first_slot * extent.num_positions;
  row.inverse_rms = problem.inverse_rms + problem.top_row * extent.num_positions;
  row.gradient = by_columns<T>(problem.row_gradient);
  return launch_per_position<T>(extent, problem.states.type, properties, where,
                                &kernel::finish_row_kernel<T, T>,
                                &kernel::finish_row_kernel<T, float>, row);
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
