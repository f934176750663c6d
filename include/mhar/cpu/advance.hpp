// SPDX-License-Identifier: Apache-2.0
//! advance on the CPU: one forward pass of a sweep.
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/chunks.hpp>
#include <mhar/cpu/detail/forward.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

namespace detail {
template <class T>
[[nodiscard]] std::size_t advance_workspace(const shape& extent, int members, int range) noexcept
{
  return chunk_workspace<forward_scratch<T>>(extent, extent.width, extent.num_heads, members,
                                             range);
}
}  // namespace detail

//! Advances the states of a group of calls over a range of rows that is read once, and finishes the first call if asked to.
//!
//! Tensors      as documented at advance_problem
//! Numerics     logits are summed over a head in a fixed tree of lanes; sources are added in order; kept states are
//!              normalised. Bits depend neither on P nor on threads, layout or alignment.
//! Cost         reads each row from memory once; about (4 G + 2) flop per row and element for G calls
//! Workspace    backend::workspace_bytes
//! Execution    one task per chunk of positions on context.run; returns when done
//! Thread-safe  yes, on different outputs and workspaces
//! Errors       what validate() says; code::small_workspace; code::incomplete
//! Empty        P == 0 is success
template <class T>
[[nodiscard]] status advance(const advance_problem<T>& problem, const context& context) noexcept
{
  if (const status valid = validate(problem, context.scratch()); !valid.ok()) { return valid; }
  const shape& extent = problem.extent;
  if (extent.num_positions == 0) { return {}; }
  const std::size_t needed =
      detail::advance_workspace<T>(extent, problem.num_calls, problem.num_rows);
  if (const status enough = detail::enough_workspace(context, needed); !enough.ok()) {
    return enough;
  }
  return detail::for_each_chunk<detail::forward_scratch<T>>(
      extent, context,
      [&](const detail::chunk& positions, detail::forward_scratch<T>&& scratch) {
        detail::forward_chunk(problem, detail::call_extras<T>{}, positions, scratch);
      },
      extent.width, extent.num_heads, problem.num_calls, problem.num_rows);
}

}  // namespace cpu
MHAR_NAMESPACE_END
