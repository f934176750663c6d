// SPDX-License-Identifier: Apache-2.0
//! merge on a GPU: partial results over disjoint sources become one (docs/operator.md, eq. 18).
#pragma once

#include <mhar/device/context.cuh>
#include <mhar/status.hpp>
#include <mhar/types/call.hpp>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN

//! Merges partial results over disjoint sets of sources, per position and head.
//!
//! Tensors     as documented at merge_problem; all in memory of the stream's device but parts.list
//! Numerics    parts are added in order; one part of finite lse among parts of -inf comes back bit for bit
//! Cost        reads the parts once, writes the mix
//! Execution   one kernel, asynchronous on the context's stream; never allocates, never synchronises; may be captured
//! Workspace   none; one that is given must lie apart from the problem's arrays all the same
//! Thread-safe any number of host threads on different streams
//! Errors      those of validate(problem); unsupported for more than 1000 listed parts at unequal distances; cuda
//! Empty       P == 0 is success and launches nothing
template <class T>
[[nodiscard]] status merge(const merge_problem<T>& problem, const context& where) noexcept;

//! 0; it is here because every verb of a single call has one.
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const merge_problem<T>& problem,
                                          const context& where) noexcept;

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END

#include <mhar/device/detail/merge_impl.cuh>
