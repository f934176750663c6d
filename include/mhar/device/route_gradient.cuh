// SPDX-License-Identifier: Apache-2.0
//! The backward of one routing call on a CUDA device (docs/operator.md, eq. 9 to 17).
#pragma once

#include <mhar/device/context.cuh>
#include <mhar/status.hpp>
#include <mhar/types/call.hpp>

#include <cstddef>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN

//! Bytes of workspace that route_gradient needs for `problem`: partial sums of the parameters'
//! gradients, and scratch memory for shapes too wide for shared memory. Host arithmetic on extents,
//! options and which gradients are wanted; no device is asked.
template <class T>
[[nodiscard]] std::size_t workspace_bytes(const route_gradient_problem<T>& problem,
                                          const context& where) noexcept;

//! Gradients of one routing call with respect to its rows, its partial and its parameters, each
//! stored or accumulated in its own element type; what is not wanted is not computed.
//!
//! Tensors      as in route_gradient_problem<T>
//!
//! Numerics     accumulate_t<T>, one rounding at each store. The order of every sum depends on the
//!              shape alone, sums over positions also on their number: bitwise equal from run
//!              to run. No atomics. Where lse is not given, its softmax goes over the rows that
//!              a block holds at a time: last bits then depend on alignment and device, too, from
//!              five rows on. Where a logit has weight 0, and for a call with
//!              one source, dl is exactly 0.
//! Cost         given lse and mix, rows are read once, for any number of rows, and every wanted
//!              gradient is written once. Without one of them a first pass over the rows finds
//!              both: the rows of a position stay in shared memory where they fit (up to 14 rows of
//!              7168 bf16 elements on compute capability 9.0), else they are read twice. Inverse
//!              rms costs one multiply-add per element when it is not given. Accumulating reads the
//!              old gradient. Fast for rows of 2- and 4-byte elements whose addresses and head
//!              widths are multiples of 16 bytes, up to 1024 such units wide (8192 bf16 elements),
//!              without key rounding; everything else works, more slowly.
//! Workspace    workspace_bytes(problem, context)
//! Execution    asynchronous on the context's stream, two kernels; never allocates, never
//!              synchronises; may be captured.
//! Thread-safe  any number of host threads on different workspaces.
//! Errors       those of validate(problem); code::small_workspace; code::unsupported for more than
//!              1024 listed rows that are not at equal distances, or a width of more than about
//!              10^8; code::cuda otherwise.
//! Range        an output norm's o is squared in accumulate_t<T>: its elements must stay below
//!              about 1e17 in float.
//! Empty        P == 0 is success; gradients of parameters are stored as zero, and left alone in
//!              accumulate mode.
template <class T>
[[nodiscard]] status route_gradient(const route_gradient_problem<T>& problem,
                                    const context& where) noexcept;

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END

#include <mhar/device/detail/route_gradient_impl.cuh>
