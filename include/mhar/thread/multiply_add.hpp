// SPDX-License-Identifier: Apache-2.0
//! a*b + c with one rounding, written out wherever two kernels must agree to the last bit: what a compiler
//! contracts by itself differs from place to place.
#pragma once

#include <mhar/config.hpp>

#include <cmath>

MHAR_NAMESPACE_BEGIN
namespace thread {

[[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE float multiply_add(float a, float b,
                                                                    float c) noexcept
{
  return fmaf(a, b, c);
}
[[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE double multiply_add(double a, double b,
                                                                     double c) noexcept
{
  return fma(a, b, c);
}

}  // namespace thread
MHAR_NAMESPACE_END
