// SPDX-License-Identifier: Apache-2.0
//! merge on the CPU: partial results over disjoint sources become one (eq. 18).
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/chunks.hpp>
#include <mhar/cpu/detail/combine.hpp>
#include <mhar/cpu/detail/softmax.hpp>
#include <mhar/cpu/detail/typed.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

namespace detail {

//! Arrays of one task of merge.
template <class T>
struct merge_scratch
{
  using accumulate = accumulate_t<T>;

  merge_scratch(arena& memory, std::int64_t width, int num_parts)
      : parts{memory.take<const T*>(num_parts)},
        weights{memory.take<accumulate>(num_parts)},
        mix{memory.take<accumulate>(width)}
  {
  }

  const T** parts;      // those with weight
  accumulate* weights;  // of all, then of those
  accumulate* mix;
};

template <class T>
void merge_position(const merge_problem<T>& problem, std::int64_t position,
                    const merge_scratch<T>& scratch) noexcept
{
  using accumulate = accumulate_t<T>;
  const shape& extent = problem.extent;
  const std::int64_t width = extent.head_width();
  std::fill(scratch.mix, scratch.mix + extent.width, accumulate{0});
  for (int h = 0; h < extent.num_heads; ++h) {
    const std::int64_t entry = position * extent.num_heads + h;
    for (int i = 0; i < problem.num_parts; ++i) {
      scratch.weights[i] = problem.part_lse[i * problem.part_lse_stride + entry];
    }
    const accumulate lse =
        softmax(scratch.weights, problem.num_parts, -std::numeric_limits<accumulate>::infinity())
            .lse;
    // A part without weight is left out: its mix may hold anything.
    int kept = 0;
    for (int i = 0; i < problem.num_parts; ++i) {
      if (scratch.weights[i] == 0) { continue; }
      scratch.weights[kept] = scratch.weights[i];
      scratch.parts[kept] = problem.parts.at(i, position);
      ++kept;
    }
    if (kept > 0) {
      // Added to a sum of 0, -0 would become 0.
      scale_row(scratch.mix + h * width, scratch.weights[0], scratch.parts[0] + h * width, width);
      combine(weight_matrix<accumulate>{scratch.weights + 1, 0, 1}, 1,
              row_range<T>{scratch.parts + 1, kept - 1}, columns{h * width, width}, &scratch.mix,
              h * width);
    }
    if (problem.lse != nullptr) { problem.lse[entry] = lse; }
  }
  if (problem.mix) { write(problem.mix, position, scratch.mix, extent.width); }
}

}  // namespace detail

//! Bytes of workspace that merge needs for a problem of these extents; 0 where they mean nothing, so that merge can say so.
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const merge_problem<T>& problem, const context&) noexcept
{
  const shape& extent = problem.extent;
  if (!mhar::detail::has_sizes(extent, problem.num_parts)) { return 0; }
  return detail::chunk_workspace<detail::merge_scratch<T>>(extent, extent.width, problem.num_parts);
}

//! Merges partial results over disjoint sets of sources, per position and head.
//!
//! Tensors      as documented at merge_problem
//! Numerics     parts are added in order; one part of finite lse among parts of -inf comes back bit for bit
//! Cost         reads the parts once, writes the mix
//! Workspace    workspace_bytes
//! Execution    one task per chunk of positions on context.run; returns when done
//! Thread-safe  yes, on different outputs and workspaces
//! Errors       what validate() says; code::small_workspace; code::incomplete
//! Empty        P == 0 is success
template <class T>
[[nodiscard]] status merge(const merge_problem<T>& problem, const context& context) noexcept
{
  if (const status valid = validate(problem, context.scratch()); !valid.ok()) { return valid; }
  const shape& extent = problem.extent;
  if (extent.num_positions == 0) { return {}; }
  const std::size_t needed = workspace_bytes(problem, context);
  if (const status enough = detail::enough_workspace(context, needed); !enough.ok()) {
    return enough;
  }
  return detail::for_each_chunk<detail::merge_scratch<T>>(
      extent, context,
      [&](const detail::chunk& positions, detail::merge_scratch<T>&& scratch) {
        for (std::int64_t p = positions.begin; p < positions.end; ++p) {
          detail::merge_position(problem, p, scratch);
        }
      },
      extent.width, problem.num_parts);
}

}  // namespace cpu
MHAR_NAMESPACE_END
