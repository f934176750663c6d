// SPDX-License-Identifier: Apache-2.0
//! Chooses and launches the kernel of a backward pass.
#pragma once

#include <mhar/kernel/sweep.cuh>

#include <mhar/device/detail/gather_tensor.cuh>
#include <mhar/device/detail/gather_wide.cuh>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

template <class T>
[[nodiscard]] status gather_any(const gather_problem<T>& problem,
                                const device_properties& properties, const context& where) noexcept
{
  using pass = block::gather_any<T, sweep_list, sweep_threads>;
  const const_rows<T> rows = rows_from(problem.rows, problem.top_row - problem.num_rows + 1);
  const const_rows<T> calls = rows_from(problem.call_gradients, problem.first_call);
  const const_rows<T> mixes = rows_from(problem.mixes, problem.first_call);
  if (const status fits = check_list(rows, problem.num_rows, "rows"); !fits.ok()) { return fits; }
  if (const status fits = check_list(calls, problem.num_calls, "call_gradients"); !fits.ok()) {
    return fits;
  }
  if (const status fits = check_list(mixes, problem.num_new_calls, "mixes"); !fits.ok()) {
    return fits;
  }
  const int chunks = chunks_of(problem.extent);
  const std::int64_t elements =
      pass::scratch_size(problem.extent.width, problem.num_rows, problem.num_calls);
  if (blocks_with_scratch<accumulate_t<T>>(where, elements, chunks) < chunks) {
    return small_workspace();
  }
  launch_shape shape;
  shape.grid = static_cast<unsigned>(chunks);
  shape.block = sweep_threads;
  const typename pass::params params{
      problem,
      block::make_row_pointers<T, sweep_list>(rows, problem.num_rows),
      block::make_row_pointers<T, sweep_list>(calls, problem.num_calls),
      block::make_row_pointers<T, sweep_list>(mixes, problem.num_new_calls),
      static_cast<accumulate_t<T>*>(where.workspace),
      chunks};
  return launch(where, properties, shape, &kernel::gather_any_kernel<T, sweep_list, sweep_threads>,
                params);
}

}  // namespace detail

template <class T>
status gather(const gather_problem<T>& problem, const context& where) noexcept
{
  if (const status valid = detail::check_problem(problem, where); !valid.ok()) { return valid; }
  if (problem.extent.num_positions == 0) { return {}; }
  if (const status chunks = detail::check_chunks(problem.partials, problem.extent); !chunks.ok()) {
    return chunks;
  }
  detail::device_properties properties;
  if (const status asked = detail::query(properties); !asked.ok()) { return asked; }
  if constexpr (detail::has_tensor_rows<T>) {
    const status launched = detail::gather_tensor(problem, properties, where);
    if (launched.code != code::unsupported) { return launched; }
    const status wide = detail::gather_wide(problem, properties, where);
    if (wide.code != code::unsupported) { return wide; }
  }
  return detail::gather_any(problem, properties, where);
}

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
