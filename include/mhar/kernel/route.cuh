// SPDX-License-Identifier: Apache-2.0
//! Kernels of the forward call: rows staged through shared memory, and rows read in place for every shape and alignment.
#pragma once

#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/detail/route_core.cuh>
#include <mhar/block/detail/route_finish.cuh>
#include <mhar/block/detail/row_stages.cuh>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! Shared memory, in this order: route_storage, then the stages.
template <class T, int ChunksPerThread, int MaxThreads, int Capacity>
__global__ void __launch_bounds__(MaxThreads)
    route_kernel(const __grid_constant__ block::route_parameters<T> p,
                 const __grid_constant__ block::row_pointers<T, Capacity> rows,
                 const block::detail::stage_shape stages)
{
  using columns_type = block::detail::register_columns<T, ChunksPerThread>;
  using storage_type = block::detail::route_storage<accumulate_t<T>>;
  extern __shared__ uint4 shared_memory[];
  auto* const memory = reinterpret_cast<accumulate_t<T>*>(shared_memory);
  const storage_type storage = storage_type::carve(memory, p.tree);
  auto* const staged = reinterpret_cast<char*>(memory + storage_type::size(p.tree));

  block::detail::release_dependents();
  block::detail::wait_for_dependencies();
  columns_type columns{p};
  block::detail::row_stages<T, columns_type, Capacity> source{p, rows, columns, stages, staged};
  source.start();
  block::detail::route_core<T, columns_type> core{p, storage, columns};
  block::detail::route_finish<T, columns_type> finish{p, storage, columns};
  core.begin();
  for (; source.more(); source.next()) {
    core.take(source.wait(), source.position(), source.first_row(), source.count());
    if (source.last_of_position()) { finish(source.position()); }
  }
}

//! `scratch` holds route_storage and the mix of each block, `scratch_stride` elements per block; null when they lie in shared
//! memory.
template <class T, int Capacity>
__global__ void __launch_bounds__(256)
    route_any_kernel(const __grid_constant__ block::route_parameters<T> p,
                     const __grid_constant__ block::row_pointers<T, Capacity> rows,
                     accumulate_t<T>* const scratch, const std::int64_t scratch_stride)
{
  using columns_type = block::detail::memory_columns<T>;
  using storage_type = block::detail::route_storage<accumulate_t<T>>;
  extern __shared__ uint4 shared_memory[];
  auto* const memory = scratch != nullptr ? scratch + blockIdx.x * scratch_stride
                                          : reinterpret_cast<accumulate_t<T>*>(shared_memory);
  const storage_type storage = storage_type::carve(memory, p.tree);

  block::detail::release_dependents();
  block::detail::wait_for_dependencies();
  columns_type columns{p, memory + storage_type::size(p.tree)};
  block::detail::route_core<T, columns_type> core{p, storage, columns};
  block::detail::route_finish<T, columns_type> finish{p, storage, columns};
  core.begin();
  for (std::int64_t position = blockIdx.x; position < p.num_positions; position += gridDim.x) {
    int first = 0;
    do {
      const int left = p.num_rows - first;
      const int count = left < block::detail::rows_per_batch ? left : block::detail::rows_per_batch;
      core.take(block::detail::rows_in_memory<T, block::row_pointers<T, Capacity>>{p, rows,
                                                                                   position, first},
                position, first, count);
      first += count;
    } while (first < p.num_rows);
    finish(position);
  }
}

}  // namespace kernel
MHAR_NAMESPACE_END
