// SPDX-License-Identifier: Apache-2.0
//! reduce on the CPU: from partial sums to the gradients of the sites' parameters.
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/chunks.hpp>
#include <mhar/cpu/detail/reduce_site.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

//! Adds the chunks of the partial sums in order: dq = scale * dw * g, dg = scale * sum dw * q, and the plain sums dbias, dnull,
//! dalpha and d(output norm weight).
//!
//! Tensors      as documented at reduce_problem
//! Numerics     in the accumulation type, chunk by chunk, then query by query; one rounding at the store
//! Cost         reads the partial sums once; no workspace
//! Execution    sites are shared out on context.run; returns when done
//! Thread-safe  yes, on different outputs
//! Errors       what validate() says; code::incomplete
template <class T>
[[nodiscard]] status reduce(const reduce_problem<T>& problem, const context& context) noexcept
{
  if (const status valid = validate(problem); !valid.ok()) { return valid; }
  const std::int64_t cost =
      problem.extent.width * problem.partials.num_chunks * problem.queries_per_site;
  return detail::run_items(context.run, problem.num_sites, cost,
                           [&](int site) { detail::reduce_site(problem, site); });
}

}  // namespace cpu
MHAR_NAMESPACE_END
