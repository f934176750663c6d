// SPDX-License-Identifier: Apache-2.0
//! The forward kernel whose warps serve a position each.
#pragma once

#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/detail/route_warp.cuh>
#include <mhar/tuning/route_warp.hpp>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! Shared memory as block::detail::warp_storage cuts it. Chunks and Spans of a lane, Split warps of a position.
template <class T, int Chunks, int Spans, int Split, int Capacity>
__global__ void __launch_bounds__(32 * tuning::warp_policy_selector::warps(Chunks, Split), 1)
    route_warp_kernel(const __grid_constant__ block::route_parameters<T> p,
                      const __grid_constant__ block::row_pointers<T, Capacity> rows,
                      const __grid_constant__ block::detail::warp_ring ring)
{
  extern __shared__ uint4 shared_memory[];
  block::detail::release_dependents();
  block::detail::wait_for_dependencies();
  constexpr int rows_at_once = tuning::warp_policy_selector::rows(Chunks);
  block::detail::route_warp<T, Chunks, Spans, rows_at_once, Split, Capacity>{
      p, rows, ring, reinterpret_cast<char*>(shared_memory)}();
}

}  // namespace kernel
MHAR_NAMESPACE_END
