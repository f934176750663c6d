// SPDX-License-Identifier: Apache-2.0
//! The forward of one self-contained routing call on a GPU.
#pragma once

#include <mhar/device/context.cuh>
#include <mhar/status.hpp>
#include <mhar/types/update.hpp>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN

//! Routes every position over its sources (docs/operator.md, eq. 1 to 7).
//!
//! Tensors     see route_problem; all in memory of the stream's device
//! Numerics    accumulate_t<T> arithmetic, sources in order 0 to N-1. A position's bits depend on its rows, the parameters, the
//!             width, the heads and T alone: not on P, its place, the layout, the alignment or the device. Rows up to 1e30 in
//!             magnitude: their squares may overflow, their dot product with w may not.
//! Cost        rows are read once where every row is 16-byte aligned, K is a multiple of 16 bytes, the width at most 30,720
//!             bytes, keys are not rounded, and partial, o, y and mix are T or float and 16-byte aligned; else twice, the second
//!             time mostly from L2, element by element where 16 bytes cannot be accessed. double is always read twice
//! Execution   one kernel, asynchronous on the context's stream; never allocates, never synchronises; may be captured
//! Workspace   workspace_bytes(problem, context): 0 up to a width of about 10,000 (double: 5,000); beyond it is asked for, and
//!             used where rows are read twice
//! Thread-safe any number of host threads on different streams
//! Errors      those of validate(problem); unsupported for more than 1000 listed rows at unequal distances, or about 2^28 heads and
//!             more; small_workspace; cuda
//! Empty       P == 0 is success and launches nothing
template <class T>
[[nodiscard]] status route(const route_problem<T>& problem, const context& where) noexcept;

//! The same with `prefix += delta` in front of it, in the same kernel: see update_problem.
template <class T>
[[nodiscard]] status route(const update_problem<T>& problem, const context& where) noexcept;

//! Scratch memory of route in bytes. Pure host arithmetic: no device is asked.
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const route_problem<T>& problem,
                                          const context& where) noexcept;
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const update_problem<T>& problem,
                                          const context& where) noexcept;

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END

#include <mhar/device/detail/route_impl.cuh>
