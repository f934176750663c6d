// SPDX-License-Identifier: Apache-2.0
//! The inverse rms on the path that a whole block waits for: a few instructions without a branch, within 2 units in the last place.
#pragma once

#include <mhar/thread/inverse_rms.hpp>
#include <mhar/thread/multiply_add.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate reciprocal_width(int width)
{
  if constexpr (sizeof(Accumulate) == sizeof(float)) {
    return __frcp_rn(static_cast<float>(width));
  }
  else {
    return Accumulate{1} / width;
  }
}
[[nodiscard]] __device__ __forceinline__ float quick_inverse_rms(float sum_of_squares,
                                                                 float reciprocal_width, int,
                                                                 float eps)
{
  return rsqrtf(thread::multiply_add(sum_of_squares, reciprocal_width, eps));
}
[[nodiscard]] __device__ __forceinline__ float quick_inverse_rms(float sum_of_squares, int width,
                                                                 float eps)
{
  return quick_inverse_rms(sum_of_squares, reciprocal_width<float>(width), width, eps);
}
[[nodiscard]] __device__ __forceinline__ double quick_inverse_rms(double sum_of_squares, int width,
                                                                  double eps)
{
  return thread::inverse_rms(sum_of_squares, width, eps);
}

}  // namespace block::detail
MHAR_NAMESPACE_END
