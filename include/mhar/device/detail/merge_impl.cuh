// SPDX-License-Identifier: Apache-2.0
//! Launcher of merge.
#pragma once

#include <mhar/device/detail/launch.cuh>
#include <mhar/device/merge.cuh>
#include <mhar/kernel/merge.cuh>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Pointers of listed parts that travel in a kernel's parameters.
inline constexpr int merge_list = 1000;

template <class T, int Capacity>
status launch_merge(const merge_problem<T>& problem, const context& where) noexcept
{
  device_properties properties;
  const status found = query(properties);
  if (!found.ok()) { return found; }
  const shape& extent = problem.extent;
  const kernel::merge_parameters<T> p{extent.num_positions * extent.num_heads,
                                      extent.num_heads,
                                      problem.num_parts,
                                      extent.head_width(),
                                      problem.part_lse,
                                      problem.part_lse_stride,
                                      problem.mix,
                                      problem.lse};
  const std::int64_t chunks = (p.head_width + thread::chunk_width<T> - 1) / thread::chunk_width<T>;
  const std::int64_t warps = chunks > 256 - 32 ? 8 : (chunks + 31) / 32;
  // A multiprocessor holds up to 64 warps and 32 blocks.
  const std::int64_t blocks =
      properties.multiprocessors * (warps < 2 ? std::int64_t{32} : std::int64_t{64} / warps);
  launch_shape shape;
  shape.grid = static_cast<unsigned>(blocks < p.num_entries ? blocks : p.num_entries);
  shape.block = static_cast<unsigned>(32 * warps);
  return launch(where, properties, shape, &kernel::merge_kernel<T, Capacity>, p,
                block::make_row_pointers<T, Capacity>(problem.parts, problem.num_parts));
}

}  // namespace detail

template <class T>
status merge(const merge_problem<T>& problem, const context& where) noexcept
{
  const status outcome = validate(problem, where.scratch());
  if (!outcome.ok() || problem.extent.num_positions == 0) { return outcome; }
  if (block::is_strided(problem.parts, problem.num_parts)) {
    return detail::launch_merge<T, 0>(problem, where);
  }
  if (problem.num_parts <= detail::merge_list) {
    return detail::launch_merge<T, detail::merge_list>(problem, where);
  }
  return {code::unsupported, "parts",
          "more listed parts than fit a kernel's parameters, and not at equal distances", 0};
}

template <class T>
std::size_t workspace_bytes(const merge_problem<T>&, const context&) noexcept
{
  return 0;
}

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
