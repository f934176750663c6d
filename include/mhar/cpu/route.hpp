// SPDX-License-Identifier: Apache-2.0
//! One self-contained routing call on the CPU, forward (eq. 1 to 8).
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/single_call.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

//! Bytes of workspace that route needs for a problem of these extents, options and outputs.
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const route_problem<T>& problem, const context&) noexcept
{
  detail::arena memory;
  static_cast<void>(detail::single_site<T>{memory, problem.extent, problem.num_rows, problem.site});
  const shape& extent = problem.extent;
  return memory.bytes() + detail::chunk_workspace<detail::forward_scratch<T>>(
                              extent, extent.width, extent.num_heads, 1, problem.num_rows);
}

//! Routes every position over the sources of one call.
//!
//! Per head h: a[n] = softmax_n(scale * <q[h], g * s[n] / rms(s[n])> + b[n]),  mix[h] = sum_n a[n] s[n][h],
//! o = partial + alpha * mix,  y = o or RMSNorm(o).
//!
//! Tensors      as documented at route_problem; any strides and alignment of the element
//! Numerics     in float (double for double), rows added in order, sums over the width in a fixed tree of lanes; one rounding
//!              at each store. Bits depend neither on P nor on threads, layout or alignment. Rows up to the largest finite
//!              value are normalised rightly; <q*g, s> must stay finite in float.
//! Cost         reads each row from memory once; about 6 flop per row and element
//! Workspace    workspace_bytes
//! Execution    one task per chunk of positions on context.run; returns when done; never allocates
//! Thread-safe  yes, on different outputs and workspaces
//! Errors       what validate() says; code::small_workspace
//! Empty        P == 0 is success; no source at all is code::bad_shape
template <class T>
[[nodiscard]] status route(const route_problem<T>& problem, const context& context) noexcept
{
  if (const status valid = validate(problem); !valid.ok()) { return valid; }
  const shape& extent = problem.extent;
  if (extent.num_positions == 0) { return {}; }
  const std::size_t needed = workspace_bytes(problem, context);
  if (const status enough = detail::enough_workspace(context, needed); !enough.ok()) {
    return enough;
  }
  detail::arena memory{context.workspace};
  const detail::single_site<T> single = detail::fold_single<T>(problem, memory);
  advance_problem<T> pass = detail::forward_pass(problem, single);
  pass.inverse_rms = problem.outputs.inverse_rms;
  pass.outputs = problem.outputs;
  const detail::call_extras<T> extras{single.unfolded, problem.outputs.weights};
  detail::for_each_chunk<detail::forward_scratch<T>>(
      extent, detail::rest_of(context, memory),
      [&](const detail::chunk& positions, detail::forward_scratch<T>&& scratch) {
        detail::forward_chunk(pass, extras, positions, scratch);
      },
      extent.width, extent.num_heads, 1, problem.num_rows);
  return {};
}

}  // namespace cpu
MHAR_NAMESPACE_END
