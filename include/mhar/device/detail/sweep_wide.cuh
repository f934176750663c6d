// SPDX-License-Identifier: Apache-2.0
//! Which passes over wide heads have kernels of their own, and what their launchers share.
#pragma once

#include <mhar/device/detail/sweep_tensor.cuh>
#include <mhar/kernel/sweep_wide.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Head widths that have kernels.
[[nodiscard]] inline bool has_wide_kernel(const shape& extent,
                                          const device_properties& properties) noexcept
{
  const std::int64_t width = extent.head_width();
  return properties.capability >= 90 && (width == 256 || width == 512) && extent.num_heads <= 8;
}

//! Calls visitor(head width, a State) with both as types.
template <class Visitor>
status dispatch_wide(std::int64_t head_width, element state, Visitor&& visitor) noexcept
{
  const auto with_width = [&](auto width) {
    return state == element::bfloat16 ? visitor(width, bfloat16{}) : visitor(width, float{});
  };
  return head_width == 256 ? with_width(cuda::std::integral_constant<int, 256>{})
                           : with_width(cuda::std::integral_constant<int, 512>{});
}

//! A matrix with what a kernel must know of its alignment.
template <class Matrix>
[[nodiscard]] block::detail::column_matrix<Matrix> by_columns(const Matrix& matrix) noexcept
{
  return {matrix, matrix && is_tensor_matrix(matrix)};
}

//! Rows of width 8 times a whole number, each a run of vectors.
template <class T>
[[nodiscard]] bool are_vector_rows(const const_rows<T>& rows, int count,
                                   const shape& extent) noexcept
{
  return extent.width % 8 == 0 && are_tensor_rows(rows, count, extent.num_positions);
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
