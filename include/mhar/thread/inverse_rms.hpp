// SPDX-License-Identifier: Apache-2.0
//! r = (sum(s^2)/d + eps)^(-1/2) from a sum of squares, without a silent overflow for rows up to 1e30.
#pragma once

#include <mhar/config.hpp>

#include <cmath>

MHAR_NAMESPACE_BEGIN
namespace thread {

//! Rows whose sum of squares overflows float (elements of about 1e18 and above) are summed again scaled by this power of two.
//! eps is far below the last bit of such a sum.
inline constexpr float overflow_scale = 0x1p-64f;

[[nodiscard]] MHAR_HOST_DEVICE inline float inverse_sqrt(float x) noexcept
{
  // Correctly rounded operations: every backend and every kernel gets the same bits.
  return 1.0f / sqrtf(x);
}
[[nodiscard]] MHAR_HOST_DEVICE inline double inverse_sqrt(double x) noexcept
{
  return 1.0 / sqrt(x);
}

template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE inline Accumulate inverse_rms(Accumulate sum_of_squares,
                                                             Accumulate width,
                                                             Accumulate eps) noexcept
{
  return inverse_sqrt(sum_of_squares / width + eps);
}

//! Whether a sum of squares left the range of its type.
template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE inline bool overflowed(Accumulate sum_of_squares) noexcept
{
  return sum_of_squares == static_cast<Accumulate>(INFINITY);
}

}  // namespace thread
MHAR_NAMESPACE_END
