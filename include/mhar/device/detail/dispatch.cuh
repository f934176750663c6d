// SPDX-License-Identifier: Apache-2.0
//! Run-time values become template arguments here and nowhere else.
#pragma once

#include <mhar/status.hpp>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Calls visitor(std::integral_constant<int, V>) with the smallest V of the ascending list that is at least `value`;
//! `too_large` is the answer when there is none.
template <int First, int... Others, class Visitor>
status dispatch_at_least(int value, const status& too_large, Visitor&& visitor) noexcept
{
  if (value <= First) { return visitor(cuda::std::integral_constant<int, First>{}); }
  if constexpr (sizeof...(Others) > 0) {
    return dispatch_at_least<Others...>(value, too_large, visitor);
  }
  else {
    return too_large;
  }
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
