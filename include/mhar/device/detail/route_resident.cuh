// SPDX-License-Identifier: Apache-2.0
//! Launches the forward kernel for positions that fit in shared memory as a whole.
#pragma once

#include <mhar/device/detail/launch.cuh>
#include <mhar/kernel/route_resident.cuh>
#include <mhar/tuning/route_resident.hpp>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

template <class T, int ChunksPerThread, bool Joined, int Capacity>
status launch_resident_for(const block::route_parameters<T>& p, const const_rows<T>& rows,
                           const tuning::resident_policy& policy, std::size_t storage_bytes,
                           const device_properties& properties, const context& where) noexcept
{
  block::detail::resident_shape cut{};
  cut.stages.num_stages = policy.num_stages;
  cut.stages.rows = policy.rows;
  cut.stages.row_bytes = p.tree.num_chunks * 16;
  cut.stages.num_batches = policy.num_batches;
  cut.column_warps = policy.column_warps;
  cut.splits = policy.splits;
  cut.head_warps = policy.head_warps;
  const std::int64_t blocks =
      std::int64_t{properties.multiprocessors} * policy.blocks_per_multiprocessor;
  launch_shape shape;
  shape.grid = static_cast<unsigned>(blocks < p.num_positions ? blocks : p.num_positions);
  shape.block = static_cast<unsigned>(policy.threads());
  shape.shared_memory = storage_bytes + static_cast<std::size_t>(policy.num_stages * policy.rows) *
                                            static_cast<std::size_t>(cut.stages.row_bytes);
  return launch(where, properties, shape,
                &kernel::route_resident_kernel<T, ChunksPerThread, Joined, Capacity>, p,
                block::make_row_pointers<T, Capacity>(rows, p.num_rows), cut);
}

//! Absent, or what plain_columns asks for.
inline bool is_plain(const const_array& parameter) noexcept
{
  return !parameter ||
         (parameter.type == element::float32 && thread::is_aligned(parameter.data, 16));
}

//! Whether whole positions fit, and then the launch.
template <int Capacity, class T>
bool launch_resident(const block::route_parameters<T>& p, const const_rows<T>& rows,
                     const device_properties& properties, const context& where,
                     status& outcome) noexcept
{
  using storage = block::detail::resident_storage<accumulate_t<T>>;
  if (properties.capability < 90 || !is_plain(p.null_source) || !is_plain(p.output_weight)) {
    return false;
  }
  const int sources = p.num_rows + (p.null_source ? 1 : 0);
  const auto storage_bytes = [&](int stages, int stage_rows) {
    return storage::bytes(p.tree, sources, stages, stage_rows);
  };
  const tuning::resident_policy policy = tuning::resident_policy_selector{}(
      p.tree, p.num_rows, static_cast<std::size_t>(p.tree.num_chunks) * 16,
      {static_cast<std::size_t>(properties.shared_memory_per_block),
       static_cast<std::size_t>(properties.shared_memory_per_multiprocessor)},
      storage_bytes);
  const std::size_t bytes = storage_bytes(policy.num_stages, policy.rows);
  const auto launch_for = [&](auto chunks, auto joined) {
    outcome = launch_resident_for<T, decltype(chunks)::value, decltype(joined)::value, Capacity>(
        p, rows, policy, bytes, properties, where);
    return true;
  };
  const auto launch_joined = [&](auto chunks) {
    return policy.joined ? launch_for(chunks, cuda::std::true_type{})
                         : launch_for(chunks, cuda::std::false_type{});
  };
  switch (policy.chunks_per_thread) {
    case 1: return launch_for(cuda::std::integral_constant<int, 1>{}, cuda::std::false_type{});
    case 2: return launch_joined(cuda::std::integral_constant<int, 2>{});
    case 4: return launch_joined(cuda::std::integral_constant<int, 4>{});
    default: return false;  // another kernel
  }
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
