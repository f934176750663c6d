// SPDX-License-Identifier: Apache-2.0
//! The inverse rms of a row, r = (mean(s^2) + eps)^(-1/2) (docs/operator.md, eq. 1), of every
//! finite row.
//!
//! The sum of squares overflows where elements pass sqrt(max/d): 1.8e19/sqrt(d) in float, which is
//! 2.1e17 at d = 7168. The plain sum is asked `overflowed`, one comparison a row; only when it says
//! yes is the row read again, each element multiplied by overflow_scale, and given to
//! scaled_inverse_rms. There eps would be far below the last bit of the mean. Products of such a
//! row with a query may overflow as well: where that matters, form them from the scaled row and
//! divide the inverse rms by overflow_scale.
#pragma once

#include <mhar/config.hpp>

#include <cmath>

MHAR_NAMESPACE_BEGIN
namespace thread {

//! A power of two under which the squares of 2^30 elements of any size have a finite sum, and a row
//! that overflowed without it loses no bit.
template <class Accumulate>
inline constexpr Accumulate overflow_scale = sizeof(Accumulate) == sizeof(float)
                                                 ? Accumulate(0x1p-80)
                                                 : Accumulate(0x1p-560);

[[nodiscard]] MHAR_HOST_DEVICE inline float inverse_sqrt(float x) noexcept
{
  // Correctly rounded operations: every backend and every kernel gets the same bits.
  return 1.0f / sqrtf(x);
}
[[nodiscard]] MHAR_HOST_DEVICE inline double inverse_sqrt(double x) noexcept
{
  return 1.0 / sqrt(x);
}

template <class Accumulate, class Width>
[[nodiscard]] MHAR_HOST_DEVICE inline Accumulate inverse_rms(Accumulate sum_of_squares, Width width,
                                                             Accumulate eps) noexcept
{
  return inverse_sqrt(sum_of_squares / static_cast<Accumulate>(width) + eps);
}

//! Of a row that was multiplied by overflow_scale, from the sum of its squares: the inverse rms of
//! the row itself.
template <class Accumulate, class Width>
[[nodiscard]] MHAR_HOST_DEVICE inline Accumulate scaled_inverse_rms(
    Accumulate sum_of_scaled_squares, Width width) noexcept
{
  return overflow_scale<Accumulate> * inverse_rms(sum_of_scaled_squares, width, Accumulate{0});
}

//! Whether a sum of squares left the range of its type. True also of a row that holds an infinity.
template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE inline bool overflowed(Accumulate sum_of_squares) noexcept
{
  return sum_of_squares == static_cast<Accumulate>(INFINITY);
}

}  // namespace thread
MHAR_NAMESPACE_END
