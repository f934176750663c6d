// SPDX-License-Identifier: Apache-2.0
//! The production form of a routing call: a row takes in what a sublayer produced, and the call reads the sum, in one pass.
#pragma once

#include <mhar/status.hpp>
#include <mhar/types/call.hpp>

MHAR_NAMESPACE_BEGIN

//! `prefix += delta`, then the call, as serving systems run block mode (docs/operator.md). Row `row` of the call becomes
//! round(row + delta), added in the accumulation type and rounded once to T; the rounded value is what is routed and written.
//!
//!   call   its rows are as they are before the addition
//!   row    the row that delta is added to, usually the last: the running prefix of the block
//!   delta  [P, d]            of any element type
//!   sum    [P, d] or absent  the rounded sum, element T; may be the row's own memory exactly (the prefix in place)
//!   copy   [P, d] or absent  the rounded sum once more, element T: the row of a block that is now complete
template <class T>
struct update_problem
{
  route_problem<T> call;
  int row = 0;
  const_matrix delta;
  matrix sum;
  matrix copy;
};

//! As for the call alone; `sum` and `copy` overlap nothing else, but for a `sum` that is exactly the updated row.
template <class T>
[[nodiscard]] status validate(const update_problem<T>& problem,
                              const workspace_view& workspace = {}) noexcept;

MHAR_NAMESPACE_END

#include <mhar/types/detail/validate_update.hpp>
