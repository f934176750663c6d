// SPDX-License-Identifier: Apache-2.0
//! The chunks of positions that are the tasks of every verb, and their scratch memory.
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/arena.hpp>
#include <mhar/cpu/detail/float_mode.hpp>
#include <mhar/status.hpp>
#include <mhar/types/shape.hpp>

#include <algorithm>
#include <atomic>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Positions [begin, end).
struct chunk
{
  int index = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

//! Depends on the shape alone: the parameters' gradients are summed chunk by chunk, so threads must not move the borders.
[[nodiscard]] inline int num_chunks(const shape& extent) noexcept
{
  constexpr std::int64_t positions_per_chunk = 16;
  constexpr std::int64_t most = 64;
  const std::int64_t wanted =
      (extent.num_positions + positions_per_chunk - 1) / positions_per_chunk;
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, most));
}

[[nodiscard]] inline chunk chunk_of(const shape& extent, int index) noexcept
{
  const std::int64_t count = num_chunks(extent);
  const std::int64_t share = extent.num_positions / count;
  const std::int64_t longer =
      extent.num_positions % count;  // the first chunks are one position longer
  const std::int64_t begin = index * share + std::min<std::int64_t>(index, longer);
  return {index, begin, begin + share + (index < longer ? 1 : 0)};
}

//! Calls body(i) for i in [0, count) on the executor, whose threads may be in any floating-point mode. An executor is the user's:
//! one that forgets tasks would leave outputs as they were, so they are counted.
template <class Body>
[[nodiscard]] status run_tasks(const executor& run, int count, Body body)
{
  struct counted
  {
    Body& body;
    std::atomic<int> done;
  };
  counted tasks{body, {0}};
  run(
      count,
      [](void* argument, int index) {
        const default_float_mode mode;
        counted& all = *static_cast<counted*>(argument);
        all.body(index);
        // What the task wrote becomes visible by the executor; the count says how many there were, no more.
        all.done.fetch_add(1, std::memory_order_relaxed);
      },
      &tasks);
  if (tasks.done.load(std::memory_order_relaxed) == count) { return {}; }
  return {code::incomplete, "context.run", "the executor did not run every task exactly once", 0};
}

//! The same for items of about `cost` elements of work each: neighbours share a task until it is worth a thread.
template <class Body>
[[nodiscard]] status run_items(const executor& run, int count, std::int64_t cost, Body body)
{
  constexpr std::int64_t worth = 32768;
  const auto share = static_cast<int>(
      std::clamp<std::int64_t>(worth / std::max<std::int64_t>(cost, 1), 1, (std::max)(count, 1)));
  return run_tasks(run, (count + share - 1) / share, [&](int task) {
    const int end = (std::min)((task + 1) * share, count);
    for (int i = task * share; i < end; ++i) { body(i); }
  });
}

[[nodiscard]] inline status enough_workspace(const context& context, std::size_t needed) noexcept
{
  if (context.workspace != nullptr && context.workspace_bytes >= needed) { return {}; }
  return {code::small_workspace, "context.workspace",
          "the workspace is missing or smaller than workspace_bytes says", 0};
}

//! What of a workspace is left after `taken`.
[[nodiscard]] inline context rest_of(const context& context, const arena& taken) noexcept
{
  return {context.run, static_cast<char*>(context.workspace) + taken.bytes(),
          context.workspace_bytes - taken.bytes()};
}

//! Calls body(chunk, scratch) for every chunk; Scratch(arena&, sizes...) takes its arrays from the chunk's part of the
//! workspace. Every chunk has its own, because an executor does not say which thread runs a task.
template <class Scratch, class Body, class... Sizes>
[[nodiscard]] status for_each_chunk(const shape& extent, const context& context, Body body,
                                    Sizes... sizes)
{
  arena measure;
  static_cast<void>(Scratch{measure, sizes...});
  const std::size_t stride = measure.bytes();
  return run_tasks(context.run, num_chunks(extent), [&](int index) {
    arena memory{static_cast<char*>(context.workspace) + static_cast<std::size_t>(index) * stride};
    body(chunk_of(extent, index), Scratch{memory, sizes...});
  });
}

//! Workspace of for_each_chunk.
template <class Scratch, class... Sizes>
[[nodiscard]] std::size_t chunk_workspace(const shape& extent, Sizes... sizes) noexcept
{
  arena measure;
  static_cast<void>(Scratch{measure, sizes...});
  return multiply_sizes(measure.bytes(), static_cast<std::size_t>(num_chunks(extent)));
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
