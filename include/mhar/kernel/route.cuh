// SPDX-License-Identifier: Apache-2.0
//! Kernels of the forward call: rows staged through shared memory, and rows read in place for every shape and alignment.
#pragma once

#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/detail/route_cluster.cuh>
#include <mhar/block/detail/route_core.cuh>
#include <mhar/block/detail/route_decode.cuh>
#include <mhar/block/detail/route_halves.cuh>
#include <mhar/block/detail/route_keys.cuh>
#include <mhar/block/detail/route_positions.cuh>
#include <mhar/block/detail/route_stream.cuh>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! Shared memory, in this order: barriers of the stages, two route_storages, the stages. The first threads own columns, the last
//! `head_threads` serve the heads and fetch the rows.
template <class T, int ChunksPerThread, bool Joined, int MaxThreads, int MinBlocks, int Capacity>
__global__ void __launch_bounds__(MaxThreads, MinBlocks)
    route_kernel(const __grid_constant__ block::route_parameters<T> p,
                 const __grid_constant__ block::row_pointers<T, Capacity> rows,
                 const __grid_constant__ block::detail::stage_shape stages, const int head_threads)
{
  namespace detail = block::detail;
  using accumulate = accumulate_t<T>;
  using columns_type = detail::register_columns<T, ChunksPerThread>;
  using storage_type = detail::route_storage<accumulate>;
  extern __shared__ uint4 shared_memory[];
  auto* const barriers = reinterpret_cast<std::uint64_t*>(shared_memory);
  auto* const memory = reinterpret_cast<accumulate*>(barriers + detail::max_stages);
  const int storage_size = static_cast<int>(storage_type::size(p.tree));
  const storage_type storage = storage_type::carve(memory, p.tree);
  auto* const staged =
      reinterpret_cast<char*>(shared_memory) + detail::stream_storage_bytes<accumulate>(p.tree);
  const int threads = static_cast<int>(blockDim.x);
  const int column_threads = threads - head_threads;
  // Sums are there to be read; steps are there to be read.
  const detail::named_barriers<1, 2> summed{threads};
  const detail::named_barriers<3, 4> stepped{threads};

  detail::release_dependents();
  detail::wait_for_dependencies();
  detail::stream_place now{blockIdx.x};
  detail::row_stages<T, Capacity> source{p, rows, stages, staged, barriers};
  const int warp = detail::warp_of_thread();
  const int head_warp = warp - column_threads / 32;
  int parity = 0;

  columns_type columns{p};
  if (head_warp == 0) {
    source.init_barriers();
    for (int stage = 0; stage < stages.num_stages; ++stage) { source.copy_rows(); }
  }
  else if (head_warp < 0) {
    for (int stage = 0; stage < stages.num_stages; ++stage) { source.copy_columns(columns); }
    columns.load_weights(p);
  }
  __syncthreads();
  if (p.null_source) {
    const detail::null_row<T> null{p};
    detail::sum_keys(p, storage, null, 1, key_rounding::none, warp, threads / 32);
    __syncthreads();
    if (warp == 0) { detail::route_heads<T>{p, 0, 1}.find_null_logits(storage, null); }
    __syncthreads();
  }

  if (head_warp >= 0) {
    const detail::route_heads<T> heads{p, head_warp, head_threads / 32};
    for (int batch = 0; now.position < p.num_positions; now.step(stages), parity ^= 1, ++batch) {
      summed.sync(parity);
      // Who has summed a batch has mixed the one before the one before it: that one's stage is free.
      if (head_warp == 0 && batch >= 2) { source.copy_rows(); }
      heads.advance(storage.alternate(parity, storage_size),
                    detail::staged_rows<T>{staged + now.offset(stages), stages.row_bytes},
                    now.position, now.first_row(stages), now.num_rows(stages, p.num_rows));
      stepped.arrive(parity);
    }
    return;
  }

  detail::column_warps<T, ChunksPerThread, Joined> work{p, columns};
  using squares_type = detail::block_squares<T, columns_type, detail::named_barrier<5>>;
  detail::route_finish<T, columns_type, squares_type> finish{
      p, columns, squares_type{p, storage.output_sums, {column_threads}}};
  const auto complete = [&](std::int64_t position, int batch, int count, const char* stage,
                            int of) {
    const storage_type stored = storage.alternate(of, storage_size);
    stepped.sync(of);
    if (batch == 0) { work.start_mix(stored.null_logits); }
    work.mix(stage, stages.row_bytes, count, stored.steps);
    if (batch == stages.num_batches - 1) { finish(position, stored.normalizers); }
  };

  std::int64_t position_before = 0;
  int batch_before = 0;
  int count_before = 0;
  char* stage_before = nullptr;
  bool first = true;
  for (; now.position < p.num_positions; now.step(stages), parity ^= 1, first = false) {
    const int count = now.num_rows(stages, p.num_rows);
    char* const stage = staged + now.offset(stages);
    // All stages are filled at first, and from the second batch on each batch's stage is filled again after the next batch.
    source.wait(now, stages.num_stages - (first ? 1 : 2));
    const int updated = p.updated_row - now.first_row(stages);
    if (updated >= 0 && updated < count) {
      detail::staged_rows<T>{stage, stages.row_bytes}.update(p, columns, now.position, updated);
      detail::fence_bulk_copies();
    }
    work.sum(stage, stages.row_bytes, count, storage.alternate(parity, storage_size).sums,
             storage.stride);
    summed.arrive(parity);
    if (!first) {
      complete(position_before, batch_before, count_before, stage_before, parity ^ 1);
      source.copy_columns(columns);
    }
    position_before = now.position;
    batch_before = now.batch;
    count_before = count;
    stage_before = stage;
  }
  complete(position_before, batch_before, count_before, stage_before, parity ^ 1);
}

//! A cluster of blocks per position, each with some of its columns: for few positions. Depth is the tree's.
template <class T, int Depth, int Capacity>
__global__ void __launch_bounds__(block::detail::cluster_block<T>::max_threads(Depth))
    route_cluster_kernel(const __grid_constant__ block::route_parameters<T> p,
                         const __grid_constant__ block::row_pointers<T, Capacity> rows,
                         const int units_per_block)
{
  extern __shared__ uint4 shared_memory[];
  block::detail::route_cluster<T, Depth, Capacity>{p, rows, units_per_block,
                                                   reinterpret_cast<char*>(shared_memory)}();
}

//! The same for calls that store y and lse alone; Sums says how many heads they have.
template <class T, int Depth, int Capacity, class Sums>
__global__ void __launch_bounds__(32 * Sums::max_warps(Depth), 2)
    route_decode_kernel(const __grid_constant__ block::route_parameters<T> p,
                        const __grid_constant__ block::row_pointers<T, Capacity> rows,
                        const int units_per_block)
{
  extern __shared__ uint4 shared_memory[];
  block::detail::route_decode<T, Depth, Capacity, Sums>{p, rows, units_per_block,
                                                        reinterpret_cast<char*>(shared_memory)}();
}

//! Two blocks for each of some positions, of calls of one head that store y and lse alone.
template <class T, int Depth, int Capacity>
__global__ void __launch_bounds__(32 * (block::detail::halves_block<T>::max_warps + 1), 2)
    route_halves_kernel(const __grid_constant__ block::route_parameters<T> p,
                        const __grid_constant__ block::row_pointers<T, Capacity> rows,
                        const int units_per_block)
{
  extern __shared__ uint4 shared_memory[];
  block::detail::route_halves<T, Depth, Capacity>{p, rows, units_per_block,
                                                  reinterpret_cast<char*>(shared_memory)}();
}

//! A cluster of blocks for some positions: for as many as there are multiprocessors.
template <class T, int Depth, int Capacity>
__global__ void __launch_bounds__(32 *
                                  block::detail::route_positions<T, Depth, Capacity>::max_warps)
    route_positions_kernel(const __grid_constant__ block::route_parameters<T> p,
                           const __grid_constant__ block::row_pointers<T, Capacity> rows,
                           const int units_per_block, const int positions_per_cluster)
{
  extern __shared__ uint4 shared_memory[];
  block::detail::release_dependents();
  block::detail::route_positions<T, Depth, Capacity>{
      p, rows, units_per_block, positions_per_cluster, reinterpret_cast<char*>(shared_memory)}();
}

//! `scratch` holds route_storage and memory_columns of each block, `scratch_stride` elements per block; null when they lie in
//! shared memory.
template <class T, int Capacity>
__global__ void __launch_bounds__(256)
    route_any_kernel(const __grid_constant__ block::route_parameters<T> p,
                     const __grid_constant__ block::row_pointers<T, Capacity> rows,
                     accumulate_t<T>* const scratch, const std::int64_t scratch_stride)
{
  namespace detail = block::detail;
  using columns_type = detail::memory_columns<T>;
  using storage_type = detail::route_storage<accumulate_t<T>>;
  using source_type = detail::rows_in_memory<T, block::row_pointers<T, Capacity>>;
  extern __shared__ uint4 shared_memory[];
  auto* const memory = scratch != nullptr ? scratch + blockIdx.x * scratch_stride
                                          : reinterpret_cast<accumulate_t<T>*>(shared_memory);
  const storage_type storage = storage_type::carve(memory, p.tree);

  detail::release_dependents();
  detail::wait_for_dependencies();
  columns_type columns{p, memory + storage_type::size(p.tree)};
  detail::route_core<T, columns_type> core{p, storage, columns};
  using squares_type = detail::block_squares<T, columns_type, detail::block_barrier>;
  detail::route_finish<T, columns_type, squares_type> finish{
      p, columns, squares_type{p, storage.output_sums, {}}};
  core.begin();
  for (std::int64_t position = blockIdx.x; position < p.num_positions; position += gridDim.x) {
    int first = 0;
    do {
      const int left = p.num_rows - first;
      const int count = left < detail::rows_per_batch ? left : detail::rows_per_batch;
      core.take(source_type{p, rows, position, first}, position, first, count);
      first += count;
    } while (first < p.num_rows);
    finish(position, storage.normalizers);
  }
}

}  // namespace kernel
MHAR_NAMESPACE_END
