// SPDX-License-Identifier: Apache-2.0
//! Chooses and launches the kernel of a forward call.
#pragma once

#include <mhar/device/detail/check_problem.cuh>
#include <mhar/device/detail/launch.cuh>
#include <mhar/device/detail/route_decode.cuh>
#include <mhar/device/detail/route_resident.cuh>
#include <mhar/device/detail/route_warp.cuh>
#include <mhar/device/route.cuh>
#include <mhar/kernel/route.cuh>
#include <mhar/tuning/route.hpp>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Pointers of a row list that travel in a kernel's parameters; the long list is for the kernel that serves every shape.
inline constexpr int short_list = 256;
inline constexpr int long_list = 1000;

//! Scratch of one block of route_any_kernel, and whether it lies in shared memory on every device.
struct route_scratch
{
  std::size_t bytes;
  bool shared;
};
template <class T>
route_scratch scratch_of(const shape& extent) noexcept
{
  using storage = block::detail::route_storage<accumulate_t<T>>;
  const thread::width_tree tree = thread::make_width_tree(extent, thread::chunk_width<T>);
  const std::size_t elements =
      storage::size(tree) + (2 * static_cast<std::size_t>(tree.width) + 3) / 4 * 4;
  const std::size_t bytes = elements * sizeof(accumulate_t<T>);
  // The smallest limit of the supported devices is 99 KiB.
  return {bytes, bytes <= (std::size_t{99} << 10)};
}

//! Blocks that are enough to fill every supported device; more would only cost workspace.
inline constexpr std::int64_t max_scratch_blocks = 256;

template <class T>
status launch_any(const block::route_parameters<T>& p, const const_rows<T>& rows,
                  const shape& extent, const device_properties& properties,
                  const context& where) noexcept
{
  constexpr int threads = 256;
  using storage = block::detail::route_storage<accumulate_t<T>>;
  constexpr int most_spans = 0x7fffffff / (2 * block::detail::rows_per_batch);
  if (storage::stride_of(p.tree) > most_spans) {
    return {code::unsupported, "extent.num_heads",
            "too many heads for 32-bit offsets of scratch memory", 0};
  }
  const route_scratch scratch = scratch_of<T>(extent);
  std::int64_t blocks = properties.multiprocessors * std::int64_t{4};
  if (!scratch.shared) {
    const auto fitting = static_cast<std::int64_t>(
        where.workspace == nullptr ? 0 : where.workspace_bytes / scratch.bytes);
    blocks = fitting < max_scratch_blocks ? fitting : max_scratch_blocks;
    if (blocks == 0) {
      return {code::small_workspace, "workspace",
              "a width this large needs workspace_bytes(problem, context)", 0};
    }
  }
  if (blocks > p.num_positions) { blocks = p.num_positions; }
  launch_shape shape;
  shape.grid = static_cast<unsigned>(blocks);
  shape.block = threads;
  shape.shared_memory = scratch.shared ? scratch.bytes : 0;
  return launch(where, properties, shape, &kernel::route_any_kernel<T, long_list>, p,
                block::make_row_pointers<T, long_list>(rows, p.num_rows),
                scratch.shared ? nullptr : static_cast<accumulate_t<T>*>(where.workspace),
                static_cast<std::int64_t>(scratch.bytes / sizeof(accumulate_t<T>)));
}

//! An absent matrix, or one of T or float that is accessed 16 bytes at a time.
template <class T>
bool is_regular(const const_matrix& view) noexcept
{
  if (!view) { return true; }
  const std::int64_t size = size_of(view.type);
  return (view.type == element_of<T>::value || view.type == element::float32) &&
         thread::is_aligned(view.data, 16) && view.position_stride * size % 16 == 0;
}
//! What register_columns asks for besides rows that are aligned.
template <class T>
bool is_regular(const block::route_parameters<T>& p) noexcept
{
  return p.tree.head_width % thread::chunk_width<T> == 0 && p.rounding == key_rounding::none &&
         is_regular<T>(p.partial) && is_regular<T>(p.delta) && is_regular<T>(p.y) &&
         is_regular<T>(p.combined) && is_regular<T>(p.mix) && is_regular<T>(p.sum) &&
         is_regular<T>(p.copy);
}

template <class T, int ChunksPerThread, bool Joined, int MaxThreads>
status launch_staged(const block::route_parameters<T>& p, const const_rows<T>& rows,
                     const tuning::route_policy& policy, const device_properties& properties,
                     const context& where) noexcept
{
  constexpr auto bounds = tuning::route_policy_selector::bounds_of(ChunksPerThread, MaxThreads);
  block::detail::stage_shape stages{};
  stages.num_stages = policy.num_stages;
  stages.rows = policy.rows;
  stages.row_bytes = p.tree.num_chunks * 16;
  stages.num_batches = p.num_rows == 0 ? 1 : (p.num_rows + policy.rows - 1) / policy.rows;
  const std::int64_t blocks =
      std::int64_t{properties.multiprocessors} * policy.blocks_per_multiprocessor;
  launch_shape shape;
  shape.grid = static_cast<unsigned>(blocks < p.num_positions ? blocks : p.num_positions);
  shape.block = static_cast<unsigned>(policy.threads);
  shape.shared_memory = policy.shared_memory;
  return launch(where, properties, shape,
                &kernel::route_kernel<T, ChunksPerThread, Joined, bounds.max_threads,
                                      bounds.min_blocks, short_list>,
                p, block::make_row_pointers<T, short_list>(rows, p.num_rows), stages,
                policy.head_threads);
}

//! What fits at a time of clusters of up to eight blocks for each position, where a block has a multiprocessor to itself: a group of
//! about sixteen multiprocessors has room for two of six and more, and one group more or less is not whole.
inline std::int64_t fitting_cluster(std::int64_t blocks, std::int64_t positions,
                                    const device_properties& properties) noexcept
{
  const int groups = properties.multiprocessors / 16;
  if (blocks > 6 && positions > 2 * groups - 1) { blocks = 6; }
  return blocks == 6 && positions > 2 * groups + 1 ? 5 : blocks;
}

//! Whether a cluster of blocks serves each position, and then the launch.
template <class T>
bool launch_cluster(const block::route_parameters<T>& p, const const_rows<T>& rows, bool strided,
                    const device_properties& properties, const context& where,
                    status& outcome) noexcept
{
  using cluster = block::detail::cluster_block<T>;
  const int num_sources = p.num_rows + (p.null_source ? 1 : 0);
  if (properties.capability < 90 || num_sources > 32 || num_sources == 0 ||
      (!strided && p.num_rows > cluster_list)) {
    return false;
  }
  const int chunks_per_unit = 32 * p.tree.depth;
  const int units = (p.tree.num_chunks + chunks_per_unit - 1) / chunks_per_unit;
  // A machine cannot place as many large clusters at a time as it has room for.
  std::int64_t blocks = properties.multiprocessors * std::int64_t{9} / 10 / p.num_positions;
  if (blocks == 0) { return false; }
  blocks = blocks < 8 ? blocks : 8;
  const int rows_per_task = cluster::rows_per_task(p.tree.depth);
  const int tasks_per_unit =
      (p.num_rows + rows_per_task - 1) / rows_per_task + num_sources - p.num_rows;
  // Of blocks of more warps than this a multiprocessor has room for one.
  if ((units + blocks - 1) / blocks * tasks_per_unit > 8) {
    blocks = fitting_cluster(blocks, p.num_positions, properties);
  }
  blocks = blocks < units ? blocks : units;
  // With fewer a warp has too much to do one after the other.
  if (blocks < 4 && blocks < units) { return false; }
  const int units_per_block = (units + static_cast<int>(blocks) - 1) / static_cast<int>(blocks);
  const int size = (units + units_per_block - 1) / units_per_block;
  const int chunks = units_per_block * chunks_per_unit;
  const std::size_t bytes = cluster::bytes(p.tree, num_sources, p.num_rows, chunks);
  const int mixing_threads = chunks * cluster::threads_per_chunk;
  if (size < 2 || mixing_threads > cluster::max_threads(p.tree.depth) ||
      bytes > static_cast<std::size_t>(properties.shared_memory_per_block)) {
    return false;
  }
  const auto launch_for = [&](auto depth) {
    constexpr int d = decltype(depth)::value;
    const int tasks = units_per_block * tasks_per_unit;
    constexpr int max_tasks = cluster::max_threads(d) < 384 ? 8 : 12;
    const int threads = 32 * (tasks < max_tasks ? tasks : max_tasks);
    launch_shape shape;
    shape.grid = static_cast<unsigned>(size * p.num_positions);
    shape.block = static_cast<unsigned>(threads > mixing_threads ? threads : mixing_threads);
    shape.shared_memory = bytes;
    shape.cluster = static_cast<unsigned>(size);
    return launch(where, properties, shape, &kernel::route_cluster_kernel<T, d, cluster_list>, p,
                  block::make_row_pointers<T, cluster_list>(rows, p.num_rows), units_per_block);
  };
  switch (p.tree.depth) {
    case 1: outcome = launch_for(cuda::std::integral_constant<int, 1>{}); break;
    case 2: outcome = launch_for(cuda::std::integral_constant<int, 2>{}); break;
    default: outcome = launch_for(cuda::std::integral_constant<int, 4>{}); break;
  }
  return true;
}

//! Whether clusters of two blocks serve all positions at once, and then the launch.
template <class T, int Depth>
bool launch_positions(const block::route_parameters<T>& p, const const_rows<T>& rows, bool strided,
                      const device_properties& properties, const context& where,
                      status& outcome) noexcept
{
  using positions = block::detail::route_positions<T, Depth, cluster_list>;
  constexpr int size = 2;
  const int num_sources = p.num_rows + (p.null_source ? 1 : 0);
  if (properties.capability < 90 || p.num_rows > positions::max_rows || num_sources == 0 ||
      (!strided && p.num_rows > cluster_list) || p.updated_row >= 0) {
    return false;
  }
  const int chunks_per_unit = 32 * Depth;
  const int units = (p.tree.num_chunks + chunks_per_unit - 1) / chunks_per_unit;
  const int units_per_block = (units + size - 1) / size;
  const std::int64_t clusters_at_once =
      properties.multiprocessors < size ? 1 : properties.multiprocessors / size;
  const std::int64_t per_cluster = (p.num_positions + clusters_at_once - 1) / clusters_at_once;
  if (units < size || units_per_block * per_cluster > positions::max_warps) { return false; }
  const int of_cluster = static_cast<int>(per_cluster);
  const std::size_t bytes = positions::bytes(p.tree, num_sources, units_per_block, of_cluster);
  if (bytes > static_cast<std::size_t>(properties.shared_memory_per_block)) { return false; }
  launch_shape shape;
  shape.grid = static_cast<unsigned>(size * ((p.num_positions + per_cluster - 1) / per_cluster));
  shape.block = static_cast<unsigned>(32 * units_per_block * of_cluster);
  shape.shared_memory = bytes;
  shape.cluster = size;
  outcome = launch(
      where, properties, shape, &kernel::route_positions_kernel<T, Depth, cluster_list>, p,
      block::make_row_pointers<T, cluster_list>(rows, p.num_rows), units_per_block, of_cluster);
  return true;
}
template <class T>
bool launch_positions(const block::route_parameters<T>& p, const const_rows<T>& rows, bool strided,
                      const device_properties& properties, const context& where,
                      status& outcome) noexcept
{
  switch (p.tree.depth) {
    case 1: return launch_positions<T, 1>(p, rows, strided, properties, where, outcome);
    case 2: return launch_positions<T, 2>(p, rows, strided, properties, where, outcome);
    default: return false;  // too much for registers
  }
}

template <class T>
status route_rows(const block::route_parameters<T>& p, const const_rows<T>& rows,
                  const shape& extent, const context& where) noexcept
{
  device_properties properties;
  const status found = query(properties);
  if (!found.ok()) { return found; }

  const bool strided = block::is_strided(rows, p.num_rows);
  // double is served by the kernel for every shape: its arithmetic, not its memory, decides the speed of most GPUs.
  if constexpr (sizeof(T) <= 4) {
    if (is_regular(p) && (strided || p.num_rows <= short_list) &&
        block::rows_are_aligned(rows, p.num_rows, p.num_positions)) {
      status outcome;
      if (launch_decode(p, rows, strided, properties, where, outcome) ||
          launch_cluster(p, rows, strided, properties, where, outcome) ||
          launch_halves(p, rows, strided, properties, where, outcome) ||
          launch_positions(p, rows, strided, properties, where, outcome) ||
          launch_warp<short_list>(p, rows, properties, where, outcome) ||
          launch_resident<short_list>(p, rows, properties, where, outcome)) {
        return outcome;
      }
      const tuning::route_policy policy = tuning::route_policy_selector{}(
          {p.tree, p.num_rows, static_cast<std::size_t>(p.tree.num_chunks) * 16,
           block::detail::stream_storage_bytes<accumulate_t<T>>(p.tree)},
          {static_cast<std::size_t>(properties.shared_memory_per_block),
           static_cast<std::size_t>(properties.shared_memory_per_multiprocessor)});
      const auto launch_for = [&](auto chunks, auto threads) {
        constexpr int c = decltype(chunks)::value;
        constexpr int t = decltype(threads)::value;
        return policy.joined ? launch_staged<T, c, true, t>(p, rows, policy, properties, where)
                             : launch_staged<T, c, false, t>(p, rows, policy, properties, where);
      };
      const cuda::std::integral_constant<int, 2> two;
      const cuda::std::integral_constant<int, 4> four;
      const cuda::std::integral_constant<int, 288> few_threads;
      const cuda::std::integral_constant<int, 512> many_threads;
      switch (policy.chunks_per_thread) {
        case 1: return launch_staged<T, 1, false, 192>(p, rows, policy, properties, where);
        case 2:
          return policy.threads <= 288 ? launch_for(two, few_threads)
                                       : launch_for(two, many_threads);
        case 4: return launch_for(four, many_threads);
        default: break;  // the kernel for every shape
      }
    }
  }
  if (strided || p.num_rows <= long_list) { return launch_any(p, rows, extent, properties, where); }
  return {code::unsupported, "rows",
          "more listed rows than fit a kernel's parameters, and not at equal distances", 0};
}

}  // namespace detail

template <class T>
status route(const route_problem<T>& problem, const context& where) noexcept
{
  const status outcome = detail::check_problem(problem, where);
  if (!outcome.ok() || problem.extent.num_positions == 0) { return outcome; }
  return detail::route_rows(block::make_route_parameters(problem), problem.rows, problem.extent,
                            where);
}

template <class T>
status route(const update_problem<T>& problem, const context& where) noexcept
{
  const status outcome = detail::check_problem(problem, where);
  if (!outcome.ok() || problem.call.extent.num_positions == 0) { return outcome; }
  return detail::route_rows(block::make_route_parameters(problem), problem.call.rows,
                            problem.call.extent, where);
}

template <class T>
std::size_t workspace_bytes(const route_problem<T>& problem, const context&) noexcept
{
  const shape& extent = problem.extent;
  if (!mhar::detail::has_sizes(extent, problem.num_rows) || extent.num_positions == 0) { return 0; }
  const detail::route_scratch scratch = detail::scratch_of<T>(extent);
  const std::int64_t blocks = extent.num_positions < detail::max_scratch_blocks
                                  ? extent.num_positions
                                  : detail::max_scratch_blocks;
  return scratch.shared ? 0 : scratch.bytes * static_cast<std::size_t>(blocks);
}
template <class T>
std::size_t workspace_bytes(const update_problem<T>& problem, const context& where) noexcept
{
  return workspace_bytes(problem.call, where);
}

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
