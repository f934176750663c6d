// SPDX-License-Identifier: Apache-2.0
//! One self-contained routing call on the CPU, forward (eq. 1 to 8).
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/single_call.hpp>
#include <mhar/types/update.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

namespace detail {

template <class T>
[[nodiscard]] std::size_t route_workspace(const route_problem<T>& problem, bool updated) noexcept
{
  const shape& extent = problem.extent;
  if (!mhar::detail::has_sizes(extent, problem.num_rows)) { return 0; }
  arena memory;
  static_cast<void>(single_site<T>{memory, extent, problem.num_rows, problem.site});
  return add_sizes(memory.bytes(),
                   chunk_workspace<forward_scratch<T>>(extent, extent.width, extent.num_heads, 1,
                                                       problem.num_rows, updated));
}

//! A valid call, whose row `update.row` takes in a delta first.
template <class T>
[[nodiscard]] status route_valid(const route_problem<T>& problem, const row_update& update,
                                 const context& context) noexcept
{
  const shape& extent = problem.extent;
  if (extent.num_positions == 0) { return {}; }
  const bool updated = update.row >= 0;
  if (const status enough = enough_workspace(context, route_workspace(problem, updated));
      !enough.ok()) {
    return enough;
  }
  const default_float_mode mode;
  arena memory{context.workspace};
  const single_site<T> single = fold_single<T>(problem, memory);
  advance_problem<T> pass = forward_pass(problem, single);
  pass.inverse_rms = problem.outputs.inverse_rms;
  pass.outputs = problem.outputs;
  const call_extras<T> extras{single.unfolded, problem.outputs.weights, update};
  return for_each_chunk<forward_scratch<T>>(
      extent, rest_of(context, memory),
      [&](const chunk& positions, forward_scratch<T>&& scratch) {
        forward_chunk(pass, extras, positions, scratch);
      },
      extent.width, extent.num_heads, 1, problem.num_rows, updated);
}

}  // namespace detail

//! Bytes of workspace that route needs for a problem of these extents, options and outputs; 0 where they mean nothing, so that
//! route can say so.
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const route_problem<T>& problem, const context&) noexcept
{
  return detail::route_workspace(problem, false);
}
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const update_problem<T>& problem, const context&) noexcept
{
  return detail::route_workspace(problem.call, true);
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
//! Errors       what validate() says; code::small_workspace; code::incomplete
//! Empty        P == 0 is success; no source at all is code::bad_shape
template <class T>
[[nodiscard]] status route(const route_problem<T>& problem, const context& context) noexcept
{
  if (const status valid = validate(problem, context.scratch()); !valid.ok()) { return valid; }
  return detail::route_valid(problem, {}, context);
}

//! The same with `prefix += delta` in front of it, in the same pass over the rows: see update_problem.
template <class T>
[[nodiscard]] status route(const update_problem<T>& problem, const context& context) noexcept
{
  if (const status valid = validate(problem, context.scratch()); !valid.ok()) { return valid; }
  return detail::route_valid(problem.call, {problem.row, problem.delta, problem.sum, problem.copy},
                             context);
}

}  // namespace cpu
MHAR_NAMESPACE_END
