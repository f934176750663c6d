// SPDX-License-Identifier: Apache-2.0
//! One self-contained routing call on the CPU, backward (eq. 9 to 17).
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/call_backward.hpp>
#include <mhar/cpu/detail/reduce_site.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

//! Bytes of workspace that route_gradient needs for a problem of these extents, options, saved values and wanted gradients;
//! 0 where the extents mean nothing, so that route_gradient can say so.
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const route_gradient_problem<T>& problem,
                                          const context&) noexcept
{
  if (!mhar::detail::has_sizes(problem.extent, problem.num_rows)) { return 0; }
  detail::arena memory;
  static_cast<void>(detail::call_backward<T>{memory, problem});
  return detail::add_sizes(memory.bytes(),
                           detail::chunk_workspace<detail::call_backward_scratch<T>>(
                               problem.extent, problem.extent, problem.num_rows));
}

//! The gradients of one call: of the rows, of the partial and of the site's parameters.
//!
//! Tensors      as documented at route_gradient_problem; any strides and alignment of the element
//! Numerics     in float (double for double); gradients of parameters are added per chunk of positions, then chunk by chunk.
//!              Bits do not depend on threads, layout or alignment; those of a row's gradient not on P.
//! Cost         with everything saved: reads each row from memory once, about 14 flop per row and element. When lse or mix
//!              is absent, or `combined` with an output norm, the forward is run again at every position, on rows that are
//!              then in the cache; an absent inverse_rms costs 2 flop per row and element.
//! Workspace    workspace_bytes
//! Execution    one task per chunk of positions on context.run, then the last sums; returns when done; never allocates
//! Thread-safe  yes, on different outputs and workspaces
//! Errors       what validate() says; code::small_workspace; code::incomplete
//! Empty        P == 0 is success: parameter gradients are stored as zero, or stay when accumulated
template <class T>
[[nodiscard]] status route_gradient(const route_gradient_problem<T>& problem,
                                    const context& context) noexcept
{
  if (const status valid = validate(problem, context.scratch()); !valid.ok()) { return valid; }
  const std::size_t needed = workspace_bytes(problem, context);
  if (const status enough = detail::enough_workspace(context, needed); !enough.ok()) {
    return enough;
  }
  const detail::default_float_mode mode;
  detail::arena memory{context.workspace};
  detail::call_backward<T> call{memory, problem};
  call.fold();
  const status ran = detail::for_each_chunk<detail::call_backward_scratch<T>>(
      problem.extent, detail::rest_of(context, memory),
      [&](const detail::chunk& positions, detail::call_backward_scratch<T>&& scratch) {
        call.run(positions, scratch);
      },
      problem.extent, problem.num_rows);
  if (!ran.ok()) { return ran; }

  const int num_bias = problem.num_rows + (problem.site.null_source ? 1 : 0);
  reduce_problem<T> last;
  last.extent = problem.extent;
  last.num_sites = 1;
  last.sites = &problem.site;
  last.gradients = &problem.gradients;
  last.num_bias = &num_bias;
  last.partials = call.partials;
  detail::reduce_site(last, 0);
  return {};
}

}  // namespace cpu
MHAR_NAMESPACE_END
