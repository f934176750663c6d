// SPDX-License-Identifier: Apache-2.0
//! Launches the forward kernel whose warps serve a position each.
#pragma once

#include <mhar/device/detail/launch.cuh>
#include <mhar/device/detail/route_resident.cuh>
#include <mhar/kernel/route_warp.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

template <class T, int Chunks, int Spans, int Split, int Capacity>
bool launch_warp_for(const block::route_parameters<T>& p, const const_rows<T>& rows,
                     const device_properties& properties, const context& where,
                     status& outcome) noexcept
{
  using tune = tuning::warp_policy_selector;
  constexpr int rows_at_once = tune::rows(Chunks);
  using storage = block::detail::warp_storage<T, Chunks, Spans, rows_at_once, Split>;
  using work = block::detail::route_warp<T, Chunks, Spans, rows_at_once, Split, Capacity>;
  if (work::ends_without_norm && p.norm == output_norm::rms) { return false; }
  block::detail::warp_ring ring{tune::warps(Chunks, Split), tune::max_slots,
                                p.tree.num_chunks * 16 / Split, static_cast<bool>(p.null_source)};
  while (storage::bytes(ring) > properties.shared_memory_per_block) { --ring.slots; }
  // One batch is summed while another row is on its way.
  if (ring.slots <= rows_at_once) { return false; }
  launch_shape shape;
  shape.grid = static_cast<unsigned>(properties.multiprocessors);
  shape.block = static_cast<unsigned>(32 * ring.warps);
  shape.shared_memory = static_cast<std::size_t>(storage::bytes(ring));
  outcome = launch(where, properties, shape,
                   &kernel::route_warp_kernel<T, Chunks, Spans, Split, Capacity>, p,
                   block::make_row_pointers<T, Capacity>(rows, p.num_rows), ring);
  return true;
}

//! Whether a warp serves each position, and then the launch. Weights and updates are left to other kernels.
template <int Capacity, class T>
bool launch_warp(const block::route_parameters<T>& p, const const_rows<T>& rows,
                 const device_properties& properties, const context& where,
                 status& outcome) noexcept
{
  if constexpr (sizeof(T) == 2) {
    using tune = tuning::warp_policy_selector;
    if (properties.capability < 90 || p.num_rows < 1 || p.weights != nullptr ||
        p.updated_row >= 0 || !is_plain(p.null_source) || !is_plain(p.output_weight)) {
      return false;
    }
    const tuning::warp_policy policy = tune{}(p.tree);
    const std::int64_t least = tune::least_positions(policy, p.num_rows);
    if (p.num_positions < least * properties.multiprocessors) { return false; }
    // Of another type a partial is not among the rows, and its loads wait for each other.
    if (policy.split > 1 && p.partial && p.partial.type != element_of<T>::value) { return false; }
    switch (10000 * policy.split + 100 * policy.chunks + policy.spans) {
      case 10201: return launch_warp_for<T, 2, 1, 1, Capacity>(p, rows, properties, where, outcome);
      case 10401: return launch_warp_for<T, 4, 1, 1, Capacity>(p, rows, properties, where, outcome);
      case 10505: return launch_warp_for<T, 5, 5, 1, Capacity>(p, rows, properties, where, outcome);
      case 10801: return launch_warp_for<T, 8, 1, 1, Capacity>(p, rows, properties, where, outcome);
      case 20801: return launch_warp_for<T, 8, 1, 2, Capacity>(p, rows, properties, where, outcome);
      case 21407:
        return launch_warp_for<T, 14, 7, 2, Capacity>(p, rows, properties, where, outcome);
      default: break;  // another kernel
    }
  }
  return false;
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
