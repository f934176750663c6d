// SPDX-License-Identifier: Apache-2.0
//! exp as plain arithmetic, so that loops over it are vectorised and its bits are the same in every one of them.
#pragma once

#include <mhar/types/element.hpp>

#include <cmath>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! exp(x), within 2 units in the last place; 0 below the smallest normal result, infinity above the largest, NaN of NaN.
[[nodiscard]] MHAR_FORCE_INLINE float exponential(float x) noexcept
{
#if defined(__clang__)
#  pragma clang fp reassociate(off)
#endif
  constexpr float log2_e = 1.44269504f;
  constexpr float ln2_high = 0.693359375f;  // 9 bits: times a small integer it is exact
  constexpr float ln2_low = -2.12194440e-4f;
  constexpr float shift =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  const float shifted = x * log2_e + shift;
  // A compiler that may reorder sums takes shifted - shift for x * log2_e. gcc says when it may, since version 12, and gets the
  // integer from the bits, which it does not vectorise; clang is told not to.
#if defined(__GNUC__) && !defined(__clang__) && (defined(__ASSOCIATIVE_MATH__) || __GNUC__ < 12)
  const auto exponent =
      static_cast<float>(static_cast<std::int32_t>(mhar::detail::bit_cast<std::uint32_t>(shifted) -
                                                   mhar::detail::bit_cast<std::uint32_t>(shift)));
#else
  const float exponent = shifted - shift;
#endif
  const float r = (x - exponent * ln2_high) - exponent * ln2_low;
  // Taylor terms adjusted for |r| <= ln(2)/2 (Cephes).
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto scale = mhar::detail::bit_cast<std::uint32_t>(shifted) << 23;
  const float result =
      mhar::detail::bit_cast<float>(mhar::detail::bit_cast<std::uint32_t>(p) + scale);
  const float bounded = x < -87.3f ? 0.0f : result;
  // NaN takes the branch of large numbers: with a payload, the bits above would make it finite.
  return x <= 88.7f ? bounded : x * 3.4e38f;
}

[[nodiscard]] inline double exponential(double x) noexcept { return std::exp(x); }

}  // namespace cpu::detail
MHAR_NAMESPACE_END
