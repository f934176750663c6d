// SPDX-License-Identifier: Apache-2.0
//! How the backward of a call is cut: columns over threads, rows over a ring, scratch memory. Host
//! arithmetic.
#pragma once

#include <mhar/block/route_gradient_params.cuh>
#include <mhar/thread/vector.hpp>
#include <mhar/tuning/route_gradient.hpp>
#include <mhar/types/call.hpp>

#include <algorithm>

MHAR_NAMESPACE_BEGIN
namespace device::detail {

//! Chunks that a thread holds in registers, 1 or 2, or 0 for a shape that has to keep its columns
//! in memory.
[[nodiscard]] constexpr int register_chunks(const shape& extent, int chunk_width) noexcept
{
  const std::int64_t head_width = extent.head_width();
  const std::int64_t chunks = extent.width / chunk_width;
  if (head_width % chunk_width != 0) { return 0; }
  const bool halves = head_width / chunk_width % 2 == 0;
  constexpr auto& policy = tuning::route_gradient;
  if (halves && chunks >= policy.two_chunks_from && chunks / 2 <= policy.two_chunks_threads) {
    return 2;
  }
  // Misaligned rows take the same threads without a ring.
  return chunks <= (std::min)(policy.one_chunk_threads, policy.direct_threads) ? 1 : 0;
}

//! By the shape and the element size alone.
[[nodiscard]] constexpr block::gradient_map make_gradient_map(const shape& extent,
                                                              int chunk_width) noexcept
{
  const std::int64_t most = tuning::route_gradient.direct_threads;
  const std::int64_t num_heads = extent.num_heads;
  const std::int64_t chunks = (extent.head_width() + chunk_width - 1) / chunk_width;
  const int held = register_chunks(extent, chunk_width);
  const std::int64_t heads = (std::min)(num_heads, most);
  std::int64_t lanes = held > 0 ? chunks / held : (std::min)(chunks, most / heads);
  if (held == 0) {
    // As few chunks per lane as possible, then as few lanes, then a number of lanes that suits
    // butterflies.
    const std::int64_t each = (chunks + lanes - 1) / lanes;
    lanes = (chunks + each - 1) / each;
    for (std::int64_t group = 32; group > 1; group /= 2) {
      const std::int64_t rounded = (lanes + group - 1) / group * group;
      if (lanes > group / 2 && rounded * heads <= most) {
        lanes = rounded;
        break;
      }
    }
  }

  block::gradient_map map;
  map.head_width = static_cast<int>(extent.head_width());
  map.chunks_per_head = static_cast<int>(chunks);
  map.lanes_per_head = static_cast<int>(lanes);
  map.chunks_per_lane = static_cast<int>((chunks + lanes - 1) / lanes);
  map.heads_at_once = static_cast<int>(heads);
  map.num_rounds = static_cast<int>((num_heads + heads - 1) / heads);
  map.num_threads = static_cast<int>((heads * lanes + 31) / 32 * 32);
  map.group = 1;
  while (map.group < 32 && lanes % (2 * map.group) == 0) {
    map.group *= 2;
    ++map.group_shift;
  }
  map.groups_per_head = map.lanes_per_head / map.group;
  map.num_groups = extent.num_heads * map.groups_per_head;
  // Few lanes per row, so that a warp finishes several rows at a time: as many as there are heads,
  // or up to eight.
  int heads_in_warp = 1;
  while (heads_in_warp < 32 && heads_in_warp < num_heads) { heads_in_warp *= 2; }
  map.finish_lanes = 1;
  while (heads_in_warp * map.finish_lanes < 8 && map.finish_lanes * 2 < map.groups_per_head) {
    map.finish_lanes *= 2;
    ++map.finish_shift;
  }
  map.segment = heads_in_warp * map.finish_lanes;
  while (1 << map.segment_shift < map.segment) { ++map.segment_shift; }
  map.rows_shift = 5 - map.segment_shift;
  return map;
}

//! Values of a block's scratch memory; -1 when offsets would not fit.
template <class T>
[[nodiscard]] block::gradient_arena make_gradient_arena(const route_gradient_problem<T>& problem,
                                                        const block::gradient_map& map,
                                                        int rows_per_stage,
                                                        bool in_registers) noexcept
{
  const std::int64_t rows = rows_per_stage;
  const std::int64_t num_heads = problem.extent.num_heads;
  const std::int64_t num_sources = problem.num_rows + (problem.site.null_source ? 1 : 0);
  const bool recomputes = problem.lse == nullptr || !problem.mix;
  const bool rounds = problem.site.rounding != key_rounding::none;
  const std::int64_t columns =
      std::int64_t{map.num_threads} * map.num_rounds * map.chunks_per_lane * thread::chunk_width<T>;

  std::int64_t size = 0;
  const auto take = [&size](std::int64_t count) {
    const std::int64_t at = size;
    // 16-byte units, for the column arrays.
    size += (count + 3) / 4 * 4;
    return static_cast<int>(std::min<std::int64_t>(at, 0x7fffffff));
  };
  block::gradient_arena arena;
  arena.parts = take(std::max<std::int64_t>(rows, 1) * 4 * map.num_groups);
  arena.position = take(2 * std::int64_t{map.num_groups});
  arena.factors = take(rows * num_heads * 2);
  arena.slopes = take(rows);
  if (in_registers) { arena.statistics = take(2 * (num_heads + problem.num_rows)); }
  arena.scalars = take(8);
  if (rounds) {
    arena.inverses = take(rows);
    arena.key_factors = take(rows * num_heads);
  }
  if (recomputes) {
    arena.logits = take(rows * num_heads);
    arena.states = take(3 * num_heads);
  }
  if (problem.site.null_source) { arena.null_heads = take(4 * num_heads); }
  if (problem.gradients.bias) { arena.bias = take(num_sources); }
  const bool wanted[5] = {static_cast<bool>(problem.gradients.null_source),
                          static_cast<bool>(problem.gradients.output_norm_weight), !in_registers,
                          !in_registers, !in_registers};
  for (int i = 0; i < 5; ++i) {
    if (wanted[i]) { arena.columns[i] = take(columns); }
  }
  arena.size = size > 0x3fffffff ? -1 : static_cast<int>(size);
  return arena;
}

//! What a plan may use of a device.
struct gradient_budget
{
  int shared_bytes = 0;          //!< of one block, at most
  int multiprocessor_bytes = 0;  //!< of all blocks of a multiprocessor together
};

//! What every block takes of shared memory for the system.
inline constexpr int system_bytes = 1024;

struct route_gradient_plan
{
  block::gradient_map map;
  block::gradient_arena arena;
  int chunks = 0;  //!< held in registers; 0: no ring
  int num_stages = 1;
  int rows_per_stage = 1;
  int slot_bytes = 0;
  int old_gradient_bytes = 0;
  int input_offsets[4] = {};
  int input_bytes = 0;
  int ring_bytes = 0;
  bool arena_in_workspace = false;

  [[nodiscard]] std::int64_t shared_bytes(int value_bytes) const noexcept
  {
    return ring_bytes + (arena_in_workspace ? 0 : std::int64_t{arena.size} * value_bytes);
  }
  //! Blocks that a multiprocessor with this much shared memory has at a time.
  [[nodiscard]] int blocks(int value_bytes, int multiprocessor_bytes) const noexcept
  {
    const std::int64_t by_memory =
        multiprocessor_bytes / (shared_bytes(value_bytes) + system_bytes);
    const int by_registers = tuning::gradient_blocks(map.num_threads, chunks);
    return static_cast<int>(
        (std::max)(std::int64_t{1}, std::min<std::int64_t>(by_memory, by_registers)));
  }
};

//! The plan without a ring, which serves every shape.
template <class T>
[[nodiscard]] route_gradient_plan make_direct_plan(
    const route_gradient_problem<T>& problem) noexcept
{
  route_gradient_plan plan;
  plan.map = make_gradient_map(problem.extent, thread::chunk_width<T>);
  plan.rows_per_stage =
      (std::max)(1, (std::min)(problem.num_rows, tuning::route_gradient.direct_rows));
  plan.arena = make_gradient_arena(problem, plan.map, plan.rows_per_stage, false);
  const std::int64_t bytes = std::int64_t{plan.arena.size} * std::int64_t{sizeof(accumulate_t<T>)};
  plan.arena_in_workspace =
      plan.arena.size < 0 || bytes > tuning::route_gradient.portable_shared_bytes;
  return plan;
}

//! Fits a ring of `stages` stages into `bytes`, with at most `most` rows a stage. False when not
//! even `least` rows fit.
template <class T>
[[nodiscard]] bool fit_ring(const route_gradient_problem<T>& problem, std::int64_t bytes,
                            int stages, int least, int most, route_gradient_plan& plan) noexcept
{
  for (int rows = most; rows >= least; --rows) {
    plan.num_stages = stages;
    plan.rows_per_stage = rows;
    const std::int64_t ring = std::int64_t{stages} * rows * plan.slot_bytes;
    if (ring > bytes) { continue; }
    plan.ring_bytes = static_cast<int>(ring) + plan.input_bytes;
    plan.arena = make_gradient_arena(problem, plan.map, rows, true);
    if (plan.arena.size >= 0 &&
        plan.shared_bytes(static_cast<int>(sizeof(accumulate_t<T>))) <= bytes) {
      return true;
    }
  }
  return false;
}

//! A plan with a ring; false when the shape or the device does not allow one.
template <class T>
[[nodiscard]] bool make_ring_plan(const route_gradient_problem<T>& problem,
                                  const gradient_budget& budget, route_gradient_plan& plan) noexcept
{
  const auto& policy = tuning::route_gradient;
  plan.map = make_gradient_map(problem.extent, thread::chunk_width<T>);
  plan.chunks = register_chunks(problem.extent, thread::chunk_width<T>);
  if (plan.chunks == 0 || problem.num_rows == 0) { return false; }
  const int width = static_cast<int>(problem.extent.width);
  const gradient_rows& gradients = problem.row_gradients;
  if (gradients && gradients.mode == update::accumulate) {
    plan.old_gradient_bytes = width * size_of(gradients.type);
  }
  plan.slot_bytes = width * static_cast<int>(sizeof(T)) + plan.old_gradient_bytes;

  const const_matrix inputs[4] = {problem.output_gradient, problem.combined_gradient, problem.mix,
                                  problem.combined};
  for (int i = 0; i < 4; ++i) {
    plan.input_offsets[i] = plan.input_bytes;
    if (inputs[i]) { plan.input_bytes += width * size_of(inputs[i].type); }
  }

  const int rows = problem.num_rows;
  const bool recomputes = problem.lse == nullptr || !problem.mix;
  for (int blocks = tuning::gradient_blocks(plan.map.num_threads, plan.chunks); blocks >= 1;
       --blocks) {
    const std::int64_t bytes =
        (std::min)(budget.shared_bytes, budget.multiprocessor_bytes / blocks - system_bytes);
    if (recomputes) {
      // All rows of a position at once, so that they are read once.
      for (int stages = 3; stages >= 1; --stages) {
        if (fit_ring(problem, bytes, stages, rows, rows, plan)) { return true; }
      }
      if (blocks > 1) { continue; }
    }
    // As few batches as possible, then as many stages.
    const int most = (std::min)(rows, policy.max_rows_per_stage);
    route_gradient_plan best;
    int fewest = rows + 1;
    for (int stages = 2; stages <= policy.max_stages; ++stages) {
      if (!fit_ring(problem, bytes, stages, 1, most, plan)) { break; }
      const int batches = (rows + plan.rows_per_stage - 1) / plan.rows_per_stage;
      if (batches > fewest) { break; }
      fewest = batches;
      // Batches of equal size.
      const int each = (rows + batches - 1) / batches;
      static_cast<void>(fit_ring(problem, bytes, stages, each, each, plan));
      best = plan;
    }
    const bool worth_it =
        blocks == 1 || best.rows_per_stage >= (std::min)(rows, policy.min_rows_per_stage);
    if (fewest <= rows && worth_it) {
      plan = best;
      return true;
    }
  }
  return false;
}

}  // namespace device::detail
MHAR_NAMESPACE_END
