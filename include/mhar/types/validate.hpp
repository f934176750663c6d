// SPDX-License-Identifier: Apache-2.0
//! Validation of every problem, before anything is launched or written: the one list of what the verbs accept.
//!
//! Each function is pure and host-only: it reads the problem (and host lists it points to), never the tensors. Backends call it
//! first; a caller may call it alone. The answer names the first failing argument.
//!
//! What is accepted
//!   counts        0 <= P <= 2^40, 1 <= d <= 2^30, P*d <= 2^58, H divides d, any number of rows, at least one source
//!   strides       of inputs >= 0 (0 repeats one position); of outputs large enough that no two positions share an element
//!   alignment     of every pointer: its element's size
//!   eps           > 0 and finite in the arithmetic's type
//!   null          pointers over [P, ...] may be null when P == 0
//! Aliasing
//!   inputs        may overlap each other in any way
//!   outputs       must not overlap an input or another output, except exactly (same pointer, element type and stride):
//!                 forward y or combined with partial; the mix of a call that a sweep finishes with the call's own slot;
//!                 output_gradient's call_gradient with output_gradient; a merge's mix and lse with one of the parts'; an
//!                 update's sum with the row it updates. Columns of one wider matrix do not overlap.
//!   workspace     must not overlap any array of the problem (between its first and its last byte); a backend passes the one
//!                 that a verb is given, but for fold and reduce, which use none
#pragma once

#include <mhar/status.hpp>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN

//! \name Single call
//! @{
template <class T>
[[nodiscard]] status validate(const route_problem<T>& problem,
                              const workspace_view& workspace = {}) noexcept;
template <class T>
[[nodiscard]] status validate(const route_gradient_problem<T>& problem,
                              const workspace_view& workspace = {}) noexcept;
template <class T>
[[nodiscard]] status validate(const merge_problem<T>& problem,
                              const workspace_view& workspace = {}) noexcept;
//! @}

//! \name Sweeps
//! @{
template <class T>
[[nodiscard]] status validate(const fold_problem<T>& problem) noexcept;
template <class T>
[[nodiscard]] status validate(const advance_problem<T>& problem,
                              const workspace_view& workspace = {}) noexcept;
template <class T>
[[nodiscard]] status validate(const output_gradient_problem<T>& problem,
                              const workspace_view& workspace = {}) noexcept;
template <class T>
[[nodiscard]] status validate(const gather_problem<T>& problem,
                              const workspace_view& workspace = {}) noexcept;
template <class T>
[[nodiscard]] status validate(const reduce_problem<T>& problem) noexcept;
//! @}

MHAR_NAMESPACE_END

#include <mhar/types/detail/validate_call.hpp>
#include <mhar/types/detail/validate_reduce.hpp>
#include <mhar/types/detail/validate_sweep.hpp>
