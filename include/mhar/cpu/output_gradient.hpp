// SPDX-License-Identifier: Apache-2.0
//! output_gradient on the CPU: the backward of what follows a call's mix.
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/call_gradient.hpp>
#include <mhar/cpu/detail/chunks.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

namespace detail {

//! Arrays of one task of output_gradient.
template <class T>
struct output_gradient_scratch
{
  using accumulate = accumulate_t<T>;

  output_gradient_scratch(arena& memory, std::int64_t width, int num_heads)
      : gradient{memory.take<accumulate>(width)},
        other{memory.take<accumulate>(width)},
        finish{memory, width},
        null{memory, width, num_heads}
  {
  }

  accumulate* gradient;  // [d] dy, then do
  accumulate* other;     // [d] o, then the mix
  finisher<accumulate> finish;
  null_gradient<accumulate> null;
};

template <class T>
void output_gradient_position(const output_gradient_problem<T>& problem,
                              const folded_site<accumulate_t<T>>& site, std::int64_t position,
                              const call_partials<accumulate_t<T>>& partials,
                              const output_gradient_scratch<T>& scratch) noexcept
{
  using accumulate = accumulate_t<T>;
  const shape& extent = problem.extent;
  const std::int64_t width = extent.width;
  accumulate* const gradient = scratch.gradient;
  read(gradient, problem.output_gradient, position, width);
  if (problem.stage.norm == output_norm::rms) {
    read(scratch.other, problem.combined, position, width);
  }
  output_norm_gradient(scratch.finish, problem.combined_gradient, position, gradient, scratch.other,
                       partials.output_norm, width);
  if (problem.partial_gradient) { write(problem.partial_gradient, position, gradient, width); }
  write(problem.call_gradient, position, gradient, width);

  // Later passes meet do as it was stored, so D and the null source must too: da - D is a small difference.
  read(gradient, problem.call_gradient, position, width);
  read(scratch.other, problem.mix, position, width);
  accumulate* const sums = problem.dot + position * extent.num_heads;
  const std::int64_t head_width = extent.head_width();
  for (int h = 0; h < extent.num_heads; ++h) {
    sums[h] =
        dot<accumulate>(gradient + h * head_width, scratch.other + h * head_width, head_width);
    if (partials.gate != nullptr) { *partials.gate += sums[h]; }
  }
  if (scratch.null.active) {
    add_position(scratch.null, site, extent, gradient, problem.lse + position * extent.num_heads,
                 sums, partials);
  }
}

template <class T>
[[nodiscard]] std::size_t output_gradient_workspace(const shape& extent) noexcept
{
  return chunk_workspace<output_gradient_scratch<T>>(extent, extent.width, extent.num_heads);
}

}  // namespace detail

//! From the gradient of a call's output to do and D, and the parts of dalpha, of the output norm's weight and of the null
//! source (eq. 9 to 11).
//!
//! Tensors      as documented at output_gradient_problem
//! Numerics     D and the null source's parts use do as rounded to T, like the passes that follow
//! Cost         reads dy, mix and (with an output norm) o, writes do
//! Workspace    backend::workspace_bytes
//! Execution    one task per chunk of positions on context.run; returns when done
//! Thread-safe  yes, on different outputs, partial sums and workspaces
//! Errors       what validate() says; code::small_workspace; code::incomplete; code::bad_shape for another number of chunks
//!              than backend::num_chunks
//! Empty        P == 0 is success; partial sums stay as they are
template <class T>
[[nodiscard]] status output_gradient(const output_gradient_problem<T>& problem,
                                     const context& context) noexcept
{
  using accumulate = accumulate_t<T>;
  if (const status valid = validate(problem, context.scratch()); !valid.ok()) { return valid; }
  const shape& extent = problem.extent;
  if (extent.num_positions == 0) { return {}; }
  if (const status chunks = detail::matching_chunks(problem.partials, extent); !chunks.ok()) {
    return chunks;
  }
  using scratch_type = detail::output_gradient_scratch<T>;
  const std::size_t needed = detail::output_gradient_workspace<T>(extent);
  if (const status enough = detail::enough_workspace(context, needed); !enough.ok()) {
    return enough;
  }
  const auto site = detail::folded_of(problem.sites, extent, problem.call);
  return detail::for_each_chunk<scratch_type>(
      extent, context,
      [&](const detail::chunk& positions, scratch_type&& scratch) {
        const auto partials =
            detail::partials_of(problem.partials, extent.width, positions.index, problem.call);
        scratch.finish.prepare(problem.stage, extent.width);
        detail::prepare<T>(scratch.null, site, extent, static_cast<accumulate>(problem.eps),
                           problem.sites.rounding);
        for (std::int64_t p = positions.begin; p < positions.end; ++p) {
          detail::output_gradient_position(problem, site, p, partials, scratch);
        }
        if (scratch.null.active) { detail::finish_chunk(scratch.null, site, extent, partials); }
      },
      extent.width, extent.num_heads);
}

}  // namespace cpu
MHAR_NAMESPACE_END
