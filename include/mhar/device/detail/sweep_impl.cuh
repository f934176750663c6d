// SPDX-License-Identifier: Apache-2.0
//! Launches fold, output_gradient and reduce; the sizes of what the verbs need.
#pragma once

#include <mhar/kernel/sweep.cuh>

#include <mhar/device/detail/advance_impl.cuh>
#include <mhar/device/detail/gather_impl.cuh>
#include <mhar/device/detail/output_gradient_columns.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Sites that travel in a kernel's parameters.
inline constexpr int sites_at_once = 64;

}  // namespace detail

template <class T>
status fold(const fold_problem<T>& problem, const context& where) noexcept
{
  using params = block::fold_sites_params<T, detail::sites_at_once>;
  if (const status valid = validate(problem); !valid.ok()) { return valid; }
  detail::device_properties properties;
  if (const status asked = detail::query(properties); !asked.ok()) { return asked; }
  folded_sites<accumulate_t<T>> folded = problem.folded;
  if (packed_bytes<T>(problem.extent, problem.num_calls) == 0) { folded.packed = nullptr; }
  for (int first = 0; first < problem.num_calls; first += detail::sites_at_once) {
    const int rest = problem.num_calls - first;
    const int count = rest < detail::sites_at_once ? rest : detail::sites_at_once;
    params batch{problem.extent, folded, problem.num_rows, first, {}, {}, {}};
    for (int i = 0; i < count; ++i) {
      batch.sites[i] = problem.sites[first + i];
      if (problem.gates != nullptr) { batch.gates[i] = problem.gates[first + i]; }
      batch.num_sources[i] = problem.num_sources[first + i];
    }
    detail::launch_shape shape;
    shape.grid = static_cast<unsigned>(count);
    shape.block = detail::sweep_threads;
    const status launched = detail::launch(
        where, properties, shape,
        &kernel::fold_sites_kernel<T, detail::sites_at_once, detail::sweep_threads>, batch);
    if (!launched.ok()) { return launched; }
  }
  if (where.dependency == dependent_launch::off || folded.packed == nullptr) { return {}; }
  context after = where;
  after.dependency = dependent_launch::off;
  return detail::launch(after, properties, {}, &kernel::fence_kernel<T>);
}

template <class T>
status output_gradient(const output_gradient_problem<T>& problem, const context& where) noexcept
{
  using pass = block::output_gradient_any<T, detail::sweep_threads>;
  if (const status valid = detail::check_problem(problem, where); !valid.ok()) { return valid; }
  const shape& extent = problem.extent;
  if (extent.num_positions == 0) { return {}; }
  if (const status chunks = detail::check_chunks(problem.partials, extent); !chunks.ok()) {
    return chunks;
  }
  detail::device_properties properties;
  if (const status asked = detail::query(properties); !asked.ok()) { return asked; }
  if constexpr (detail::has_tensor_rows<T>) {
    const status wide = detail::output_gradient_wide(problem, properties, where);
    if (wide.code != code::unsupported) { return wide; }
    const status columns = detail::output_gradient_columns(problem, properties, where);
    if (columns.code != code::unsupported) { return columns; }
  }
  const int chunks = detail::chunks_of(extent);
  const std::int64_t elements = pass::scratch_size(extent.width, extent.num_heads);
  if (detail::blocks_with_scratch<accumulate_t<T>>(where, elements, chunks) < chunks) {
    return detail::small_workspace();
  }
  detail::launch_shape shape;
  shape.grid = static_cast<unsigned>(chunks);
  shape.block = detail::sweep_threads;
  const typename pass::params params{problem, static_cast<accumulate_t<T>*>(where.workspace),
                                     chunks};
  return detail::launch(where, properties, shape,
                        &kernel::output_gradient_any_kernel<T, detail::sweep_threads>, params);
}

template <class T>
status reduce(const reduce_problem<T>& problem, const context& where) noexcept
{
  using params = block::reduce_sites_params<T, detail::sites_at_once>;
  if (const status valid = validate(problem); !valid.ok()) { return valid; }
  detail::device_properties properties;
  if (const status asked = detail::query(properties); !asked.ok()) { return asked; }
  for (int first = 0; first < problem.num_sites; first += detail::sites_at_once) {
    const int rest = problem.num_sites - first;
    const int count = rest < detail::sites_at_once ? rest : detail::sites_at_once;
    params batch{problem.extent, problem.partials, problem.queries_per_site, first, {}, {}, {}};
    std::int64_t columns = problem.extent.width;
    for (int i = 0; i < count; ++i) {
      batch.sites[i] = problem.sites[first + i];
      batch.gradients[i] = problem.gradients[first + i];
      batch.num_bias[i] = problem.num_bias == nullptr ? 0 : problem.num_bias[first + i];
      columns = batch.num_bias[i] > columns ? batch.num_bias[i] : columns;
    }
    detail::launch_shape shape;
    shape.grid = dim3(static_cast<unsigned>((columns + 31) / 32), static_cast<unsigned>(count));
    shape.block = block::reduce_sites<T, detail::sites_at_once>::num_threads;
    const status launched = detail::launch(
        where, properties, shape, &kernel::reduce_sites_kernel<T, detail::sites_at_once>, batch);
    if (!launched.ok()) { return launched; }
  }
  return {};
}

inline int num_chunks(const shape& extent) noexcept { return detail::chunks_of(extent); }

template <class T>
std::size_t workspace_bytes(const sweep_limits& limits) noexcept
{
  if (!mhar::detail::has_sizes(limits.extent, (std::min)(limits.max_members, limits.max_range))) {
    return 0;
  }
  const std::int64_t width = limits.extent.width;
  const std::int64_t chunks = detail::chunks_of(limits.extent);
  const std::int64_t positions = limits.extent.num_positions;
  const std::int64_t blocks =
      positions < detail::advance_blocks ? positions : detail::advance_blocks;
  const std::int64_t sizes[] = {
      blocks * block::advance_any<T, detail::sweep_list, detail::sweep_threads>::scratch_size(
                   width, limits.max_members, limits.max_range),
      chunks * block::gather_any<T, detail::sweep_list, detail::sweep_threads>::scratch_size(
                   width, limits.max_members, limits.max_range),
      chunks * block::output_gradient_any<T, detail::sweep_threads>::scratch_size(
                   width, limits.extent.num_heads),
      detail::has_tensor_rows<T> && detail::has_fast_heads(limits.extent)
          ? (std::min)(positions, detail::unfinished_positions) *
                detail::unfinished_size(limits.extent)
          : 0};
  std::int64_t largest = 0;
  for (const std::int64_t size : sizes) { largest = size > largest ? size : largest; }
  return static_cast<std::size_t>(largest) * sizeof(accumulate_t<T>);
}

template <class T>
std::size_t packed_bytes(const shape& extent, int num_calls) noexcept
{
  return mhar::detail::has_sizes(extent, num_calls)
             ? block::detail::packed_queries<T>::bytes(extent, num_calls)
             : 0;
}

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
