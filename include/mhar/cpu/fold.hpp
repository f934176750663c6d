// SPDX-License-Identifier: Apache-2.0
//! fold on the CPU: prepares the parameters of the calls of a sweep.
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/chunks.hpp>
#include <mhar/cpu/detail/fold_site.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

//! Writes every call's folded query w = scale * q * g, biases, null source with its logits, and gates.
//!
//! Tensors      as documented at fold_problem and folded_sites; `packed` is not used by this backend
//! Numerics     in the accumulation type
//! Cost         reads the parameters once; no workspace
//! Execution    calls are shared out on context.run; returns when done
//! Thread-safe  yes, on different outputs
//! Errors       what validate() says; code::incomplete
template <class T>
[[nodiscard]] status fold(const fold_problem<T>& problem, const context& context) noexcept
{
  if (const status valid = validate(problem); !valid.ok()) { return valid; }
  return detail::run_items(context.run, problem.num_calls, problem.extent.width, [&](int call) {
    const const_array gate = problem.gates != nullptr ? problem.gates[call] : const_array{};
    detail::fold_site<T>(problem.extent, problem.sites[call], gate, problem.num_sources[call],
                         problem.num_rows, problem.folded, call);
  });
}

}  // namespace cpu
MHAR_NAMESPACE_END
