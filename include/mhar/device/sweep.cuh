// SPDX-License-Identifier: Apache-2.0
//! The verbs of a sweep on a GPU: fold, advance, output_gradient, gather, reduce (docs/sweeps.md).
#pragma once

#include <mhar/device/context.cuh>
#include <mhar/status.hpp>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN

//! Writes every call's folded query w = scale * q * g, biases, null source with its logits, and
//! gates; and, for 16-bit rows, the form of the queries that tensor cores read, when folded.packed is
//! given.
//!
//! Tensors     see fold_problem; `sites`, `gates` and `num_sources` are host arrays, what they
//!             point to is device memory
//! Numerics    in the accumulation type
//! Execution   one kernel per 64 calls, asynchronous on the context's stream; never allocates; may
//!             be captured. With programmatic launch an empty kernel follows, so that passes may
//!             read the packed queries before they wait.
//! Errors      those of validate(problem); cuda
template <class T>
[[nodiscard]] status fold(const fold_problem<T>& problem, const context& where) noexcept;

//! Advances the states of a group of calls over a range of rows that is read once, and finishes the
//! first call if asked to.
//!
//! Tensors     see advance_problem; all in device memory but rows.list
//! Numerics    accumulate_t<T>; kept states are normalised. A position's bits depend on its rows,
//!             the parameters and the segments of rows that its calls have met: not on P, its
//!             place, the number of calls in the pass, layout or alignment. With one exception:
//!             16-bit rows of head widths that have kernels of their own take them where arrays
//!             start at multiples of 16 bytes and rows lie at equal distances, and are summed in
//!             another order elsewhere.
//! Cost        reads each row once
//! Execution   one kernel or a few, asynchronous on the context's stream; never allocates; may be
//!             captured. With programmatic launch a pass that has a new row and older ones may read
//!             the older ones, and its kept states, before the kernel in front has ended: they were
//!             complete when the pass began to which the last of them was new, and no kernel
//!             behind that pass started before. A pass whose old rows no pass has had as new ones, or
//!             whose states were kept by a pass behind that one, has to be launched without.
//! Workspace   workspace_bytes<T>(limits)
//! Errors      those of validate(problem); unsupported for more than 1000 listed rows;
//!             small_workspace; cuda
//! Empty       P == 0 is success and launches nothing
template <class T>
[[nodiscard]] status advance(const advance_problem<T>& problem, const context& where) noexcept;

//! From the gradient of a call's output to do and D, and the parts of dalpha, of the output norm's
//! weight and of the null source
//! (eq. 9 to 11).
//!
//! Tensors     see output_gradient_problem
//! Numerics    D and the null source's parts use do as rounded to T, like the passes that follow
//! Execution   one kernel or two, asynchronous on the context's stream; never allocates; may be
//!             captured
//! Workspace   workspace_bytes<T>(limits)
//! Errors      those of validate(problem); small_workspace; bad_shape for another number of chunks
//!             than num_chunks(extent); cuda
//! Empty       P == 0 is success; partial sums stay as they are
template <class T>
[[nodiscard]] status output_gradient(const output_gradient_problem<T>& problem,
                                     const context& where) noexcept;

//! Advances the gradients of a group of rows over a range of calls whose gradients are read once,
//! adds every pair's part of dw and dbias, and finishes the top row if asked to (eq. 12 to 17).
//!
//! Tensors     see gather_problem; all in device memory but the lists of rows
//! Numerics    weights are recomputed from lse; parts of dw are added per chunk of positions, in
//!             order; no atomics. A position's bits do not depend on P, its place or the number of
//!             rows in the pass.
//! Cost        reads each row and each call's gradient once
//! Execution   one kernel, asynchronous on the context's stream; never allocates; may be captured
//! Workspace   workspace_bytes<T>(limits)
//! Errors      those of validate(problem); unsupported for more than 1000 listed rows or calls;
//!             small_workspace; bad_shape for another
//!             number of chunks than num_chunks(extent); cuda
//! Empty       P == 0 is success; partial sums stay as they are
template <class T>
[[nodiscard]] status gather(const gather_problem<T>& problem, const context& where) noexcept;

//! Adds the chunks of the partial sums in a fixed order: dq = scale * dw * g, dg = scale * sum dw *
//! q, and the plain sums.
//!
//! Tensors     see reduce_problem; `sites`, `gradients` and `num_bias` are host arrays, what they
//!             point to is device memory
//! Numerics    in the accumulation type; one rounding at the store
//! Execution   one kernel per 64 sites, asynchronous on the context's stream; never allocates; may
//!             be captured
//! Errors      those of validate(problem); cuda
template <class T>
[[nodiscard]] status reduce(const reduce_problem<T>& problem, const context& where) noexcept;

//! Chunks of positions that partial sums are kept for: of the extent alone, whatever the device.
[[nodiscard]] int num_chunks(const shape& extent) noexcept;

//! Bytes of workspace that serve every verb within the limits.
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const sweep_limits& limits) noexcept;

//! Bytes of folded_sites::packed; 0 where rows of this type and width have no packed form.
template <class T>
[[nodiscard]] std::size_t packed_bytes(const shape& extent, int num_calls) noexcept;

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END

#include <mhar/device/detail/advance_impl.cuh>
#include <mhar/device/detail/gather_impl.cuh>
#include <mhar/device/detail/sweep_impl.cuh>
