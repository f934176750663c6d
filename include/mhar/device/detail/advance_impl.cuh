// SPDX-License-Identifier: Apache-2.0
//! Chooses and launches the kernel of a forward pass.
#pragma once

#include <mhar/kernel/sweep.cuh>

#include <mhar/device/detail/advance_tensor.cuh>
#include <mhar/device/detail/advance_wide.cuh>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Blocks of the kernel for every shape: enough to fill a device, few enough to keep their scratch
//! in its caches.
inline constexpr std::int64_t advance_blocks = 512;

template <class T>
[[nodiscard]] status advance_any(const advance_problem<T>& problem,
                                 const device_properties& properties, const context& where) noexcept
{
  using pass = block::advance_any<T, sweep_list, sweep_threads>;
  const const_rows<T> rows = rows_from(problem.rows, problem.first_row);
  if (const status fits = check_list(rows, problem.num_rows, "rows"); !fits.ok()) { return fits; }
  const std::int64_t positions = problem.extent.num_positions;
  const std::int64_t blocks = blocks_with_scratch<accumulate_t<T>>(
      where, pass::scratch_size(problem.extent.width, problem.num_calls, problem.num_rows),
      positions < advance_blocks ? positions : advance_blocks);
  if (blocks == 0) { return small_workspace(); }
  launch_shape shape;
  shape.grid = static_cast<unsigned>(blocks);
  shape.block = sweep_threads;
  const typename pass::params params{
      problem, block::make_row_pointers<T, sweep_list>(rows, problem.num_rows),
      static_cast<accumulate_t<T>*>(where.workspace)};
  return launch(where, properties, shape, &kernel::advance_any_kernel<T, sweep_list, sweep_threads>,
                params);
}

//! A pass that tensor cores serve. What they cannot end, as it is stored in another type or place,
//! the plain kernel does: the first call and nothing else, so that the bits of the others do not
//! depend on it.
template <class T>
[[nodiscard]] status advance_served(const advance_problem<T>& problem,
                                    const device_properties& properties,
                                    const context& where) noexcept
{
  if (ends_on_tensor_cores(problem)) { return advance_tensor(problem, properties, where); }
  const status launched = advance_any(first_call_of(problem), properties, where);
  if (!launched.ok() || problem.num_calls == 1) { return launched; }
  return advance_tensor(other_calls_of(problem), properties, where);
}

}  // namespace detail

template <class T>
status advance(const advance_problem<T>& problem, const context& where) noexcept
{
  if (const status valid = detail::check_problem(problem, where); !valid.ok()) { return valid; }
  if (problem.extent.num_positions == 0) { return {}; }
  detail::device_properties properties;
  if (const status asked = detail::query(properties); !asked.ok()) { return asked; }
  if constexpr (detail::has_tensor_rows<T>) {
    if (detail::serves(problem, properties)) {
      return detail::advance_served(problem, properties, where);
    }
    const status wide = detail::advance_wide(problem, properties, where);
    if (wide.code != code::unsupported) { return wide; }
  }
  return detail::advance_any(problem, properties, where);
}

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
