// SPDX-License-Identifier: Apache-2.0
//! The forward kernel for positions whose rows all fit in shared memory: warps of five roles work on different positions at a time.
#pragma once

#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/detail/resident_roles.cuh>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! Shared memory, in this order: resident_storage, the stages. Warps, in this order: those that mix, those that sum, those that
//! serve the heads, one that closes the softmax, one that fetches the rows.
template <class T, int ChunksPerThread, bool Joined, int Capacity>
__global__ void __launch_bounds__(ChunksPerThread == 4 ? 640 : 1024, 1)
    route_resident_kernel(const __grid_constant__ block::route_parameters<T> p,
                          const __grid_constant__ block::row_pointers<T, Capacity> rows,
                          const __grid_constant__ block::detail::resident_shape shape)
{
  namespace detail = block::detail;
  extern __shared__ uint4 shared_memory[];
  const detail::resident_roles<T, ChunksPerThread, Joined, Capacity> roles{
      p, rows, shape, reinterpret_cast<char*>(shared_memory)};
  const int warp = detail::warp_of_thread();
  const int mixing = shape.column_warps;
  const int summing = mixing + shape.column_warps * shape.splits;
  const int heading = summing + shape.head_warps;

  detail::release_dependents();
  detail::wait_for_dependencies();
  if (warp == heading + 1) { roles.init_barriers(); }
  __syncthreads();
  roles.find_null_logits(warp);

  if (warp < mixing) { roles.mix(); }
  else if (warp < summing) {
    roles.sum(warp - mixing);
  }
  else if (warp < heading) {
    roles.serve_heads(warp - summing);
  }
  else if (warp == heading) {
    roles.close();
  }
  else {
    roles.fetch();
  }
}

}  // namespace kernel
MHAR_NAMESPACE_END
