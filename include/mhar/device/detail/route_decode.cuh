// SPDX-License-Identifier: Apache-2.0
//! Launches the forward kernels for few positions whose calls have one head and nothing unusual.
#pragma once

#include <mhar/device/detail/launch.cuh>
#include <mhar/device/detail/route_resident.cuh>
#include <mhar/kernel/route.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Pointers of a list that a launch for few positions carries.
inline constexpr int cluster_list = 32;

//! Whether a call has nothing that the kernels for decoding lack.
template <class T>
bool is_usual(const block::route_parameters<T>& p, bool strided,
              const device_properties& properties) noexcept
{
  return properties.capability >= 90 && p.num_rows >= 1 &&
         p.num_rows <= block::detail::decode_rows && (strided || p.num_rows <= cluster_list) &&
         p.updated_row < 0 && !p.null_source && !p.bias && p.weights == nullptr &&
         p.inverse_rms == nullptr && block::detail::stores_only_y(p) &&
         p.y.type == element_of<T>::value && is_plain(p.query) && is_plain(p.norm_weight);
}

inline bool has_one_head(const thread::width_tree& tree) noexcept
{
  return tree.num_heads == 1 && tree.group == 32 && tree.num_spans <= block::detail::decode_spans;
}
inline bool has_few_heads(const thread::width_tree& tree) noexcept
{
  using sums = block::detail::few_heads_sums;
  return tree.num_heads > 1 && tree.num_heads <= sums::max_heads && tree.group >= 16 &&
         tree.spans_per_head <= sums::spans_per_head && tree.num_chunks % (32 * tree.depth) == 0;
}

//! Whether a cluster of blocks serves each position of such a call, and then the launch.
template <class T, int Depth, class Sums>
bool launch_decode(const block::route_parameters<T>& p, const const_rows<T>& rows,
                   const device_properties& properties, const context& where,
                   status& outcome) noexcept
{
  using decode = block::detail::decode_block<T, Sums>;
  constexpr int max_warps = Sums::max_warps(Depth);
  const int chunks_per_unit = 32 * Depth;
  const int units = p.tree.num_chunks / chunks_per_unit;
  // Two blocks fit a multiprocessor, where large clusters leave some of those free.
  std::int64_t blocks = properties.multiprocessors * std::int64_t{9} / 10 / p.num_positions;
  blocks = blocks < 8 ? blocks : 8;
  blocks = blocks < units ? blocks : units;
  if (blocks < 4 && blocks < units) { return false; }
  const int units_per_block = (units + static_cast<int>(blocks) - 1) / static_cast<int>(blocks);
  const int size = (units + units_per_block - 1) / units_per_block;
  const int chunks = units_per_block * chunks_per_unit;
  const int mixing_warps = chunks * decode::threads_per_chunk(chunks) / 32;
  // A thread folds four elements of the query.
  const int folding_warps = chunks * decode::quads_per_chunk / 32;
  const int least = mixing_warps > folding_warps ? mixing_warps : folding_warps;
  if (size < 2 || least > max_warps) { return false; }
  constexpr int rows_per_task = Sums::rows_per_task(Depth);
  const int tasks = units_per_block * ((p.num_rows + rows_per_task - 1) / rows_per_task);
  const int rounds = (tasks + max_warps - 1) / max_warps;
  const int summing_warps = (tasks + rounds - 1) / rounds;
  const int warps = summing_warps > least ? summing_warps : least;
  const std::size_t bytes = decode::bytes(p.num_rows, chunks, warps);
  if (!has_room(properties, static_cast<std::int64_t>(bytes))) { return false; }
  launch_shape shape;
  shape.grid = static_cast<unsigned>(size * p.num_positions);
  shape.block = static_cast<unsigned>(32 * warps);
  shape.shared_memory = bytes;
  shape.cluster = static_cast<unsigned>(size);
  outcome =
      launch(where, properties, shape, &kernel::route_decode_kernel<T, Depth, cluster_list, Sums>,
             p, block::make_row_pointers<T, cluster_list>(rows, p.num_rows), units_per_block);
  return true;
}
template <class T>
bool launch_decode(const block::route_parameters<T>& p, const const_rows<T>& rows, bool strided,
                   const device_properties& properties, const context& where,
                   status& outcome) noexcept
{
  using block::detail::few_heads_sums;
  using block::detail::one_head_sums;
  if (!is_usual(p, strided, properties) || p.tree.depth > 2) { return false; }
  const bool flat = p.tree.depth == 1;
  if (has_one_head(p.tree)) {
    return flat ? launch_decode<T, 1, one_head_sums>(p, rows, properties, where, outcome)
                : launch_decode<T, 2, one_head_sums>(p, rows, properties, where, outcome);
  }
  if (has_few_heads(p.tree)) {
    return flat ? launch_decode<T, 1, few_heads_sums>(p, rows, properties, where, outcome)
                : launch_decode<T, 2, few_heads_sums>(p, rows, properties, where, outcome);
  }
  return false;
}

//! Whether two blocks serve each position of such a call, all of them at once, and then the launch.
template <class T, int Depth>
bool launch_halves(const block::route_parameters<T>& p, const const_rows<T>& rows, bool strided,
                   const device_properties& properties, const context& where,
                   status& outcome) noexcept
{
  using halves = block::detail::halves_block<T>;
  constexpr int size = 2;
  if (!is_usual(p, strided, properties) || !has_one_head(p.tree) ||
      p.num_positions > properties.multiprocessors) {
    return false;
  }
  const int units = p.tree.num_spans;
  const int units_per_block = (units + size - 1) / size;
  const int chunks = units_per_block * 32 * Depth;
  const std::size_t bytes = halves::bytes(p.num_rows, chunks);
  // A set of warps takes a row, and a thread mixes a chunk.
  int sets = halves::max_warps / units_per_block;
  sets = sets < p.num_rows ? sets : p.num_rows;
  sets = sets > Depth ? sets : Depth;
  if (units < size || units_per_block * sets > halves::max_warps ||
      bytes > static_cast<std::size_t>(properties.shared_memory_per_block) / 2) {
    return false;
  }
  launch_shape shape;
  shape.grid = static_cast<unsigned>(size * p.num_positions);
  shape.block = static_cast<unsigned>(32 * (units_per_block * sets + 1));
  shape.shared_memory = bytes;
  shape.cluster = size;
  outcome = launch(where, properties, shape, &kernel::route_halves_kernel<T, Depth, cluster_list>,
                   p, block::make_row_pointers<T, cluster_list>(rows, p.num_rows), units_per_block);
  return true;
}
template <class T>
bool launch_halves(const block::route_parameters<T>& p, const const_rows<T>& rows, bool strided,
                   const device_properties& properties, const context& where,
                   status& outcome) noexcept
{
  switch (p.tree.depth) {
    case 1: return launch_halves<T, 1>(p, rows, strided, properties, where, outcome);
    case 2: return launch_halves<T, 2>(p, rows, strided, properties, where, outcome);
    default: return false;  // more spans than its lanes add up
  }
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
