// SPDX-License-Identifier: Apache-2.0
//! Which passes over wide heads have kernels of their own, and what their launchers share.
#pragma once

#include <mhar/device/detail/sweep_params.cuh>
#include <mhar/kernel/sweep_wide.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! How a head becomes the pieces of warps. Heads of 256 and 512 are one piece; others are pieces of
//! 256, over as few blocks as hold them.
struct head_split
{
  static constexpr int piece_width = 256;
  int pieces = 0;  //!< of one block; 0 when the passes have no kernel for this width
  int spread = 1;  //!< blocks

  [[nodiscard]] bool is_split() const noexcept { return pieces > 1; }
};

[[nodiscard]] inline head_split split_of(const shape& extent) noexcept
{
  const std::int64_t width = extent.head_width();
  if (extent.num_heads > 8 || width % head_split::piece_width != 0) { return {}; }
  if (width <= 512) { return {1, 1}; }
  const std::int64_t pieces = width / head_split::piece_width;
  for (int spread = 1; spread * extent.num_heads <= 8; spread *= 2) {
    if (pieces % spread == 0 && pieces / spread <= 8) {
      return {static_cast<int>(pieces / spread), spread};
    }
  }
  return {};
}

[[nodiscard]] inline bool has_wide_heads(const shape& extent) noexcept
{
  return split_of(extent).pieces > 0;
}
//! Head widths that have kernels of either kind. Others take the plain kernels throughout, so that
//! their bits do not depend on alignment.
[[nodiscard]] inline bool has_fast_heads(const shape& extent) noexcept
{
  return has_tensor_kernel(extent) || has_wide_heads(extent);
}
[[nodiscard]] inline bool has_wide_kernel(const shape& extent,
                                          const device_properties& properties) noexcept
{
  return properties.capability >= 90 && has_wide_heads(extent);
}

//! Rows that advance_wide takes.
inline constexpr int max_wide_rows = 16;

//! Heads of the widths of has_tensor_kernel whose calls start from a null source: between few rows
//! and many advance_wide takes them, which has null sources in shared memory.
template <class T>
[[nodiscard]] bool starts_from_null(const advance_problem<T>& problem,
                                    const device_properties& properties) noexcept
{
  return properties.capability >= 90 && has_tensor_kernel(problem.extent) &&
         problem.sites.null_source != nullptr && problem.start == pass_start::fresh;
}

//! Calls visitor(width of a piece, whether heads are split, a State) with all as types; states are T
//! or float.
template <class T, class Visitor>
status dispatch_wide(std::int64_t head_width, element state, Visitor&& visitor) noexcept
{
  const auto with_width = [&](auto width, auto split) {
    return state == element_of<T>::value ? visitor(width, split, T{})
                                         : visitor(width, split, float{});
  };
  switch (head_width) {
    case 256: return with_width(cuda::std::integral_constant<int, 256>{}, cuda::std::false_type{});
    case 512: return with_width(cuda::std::integral_constant<int, 512>{}, cuda::std::false_type{});
    default:
      return with_width(cuda::std::integral_constant<int, head_split::piece_width>{},
                        cuda::std::true_type{});
  }
}

//! Teams of a block, as many as threads and shared memory have room for.
template <class BytesOf>
[[nodiscard]] int teams_of(int pieces, int max_threads, const device_properties& properties,
                           BytesOf bytes_of) noexcept
{
  int teams = max_threads / (32 * pieces);
  while (teams > 1 && bytes_of(teams) > properties.shared_memory_per_block) { --teams; }
  return teams;
}

//! A matrix with what a kernel must know of its alignment.
template <class T, class Matrix>
[[nodiscard]] block::detail::column_matrix<T, Matrix> by_columns(const Matrix& matrix) noexcept
{
  return {matrix, matrix && is_tensor_matrix<T>(matrix)};
}

//! Rows of width 8 times a whole number, each a run of vectors.
template <class T>
[[nodiscard]] bool are_vector_rows(const const_rows<T>& rows, int count,
                                   const shape& extent) noexcept
{
  return extent.width % 8 == 0 && are_tensor_rows(rows, count, extent.num_positions);
}

template <class T>
[[nodiscard]] constexpr bool is_vector_element(element type) noexcept
{
  return type == element_of<T>::value || type == element::float32;
}

//! Whether a matrix, if there is one, is what kernels read as a vector_matrix.
template <class T, class Matrix>
[[nodiscard]] bool is_vector_matrix(const Matrix& matrix) noexcept
{
  return !matrix ||
         (is_vector_element<T>(matrix.type) && is_aligned_16(matrix.data) &&
          matrix.position_stride * static_cast<std::int64_t>(size_of(matrix.type)) % 16 == 0);
}

template <class T>
[[nodiscard]] block::detail::vector_matrix<T, const void> as_vectors(
    const const_matrix& matrix) noexcept
{
  return {matrix.data, matrix.position_stride, matrix.type == element::float32};
}
template <class T>
[[nodiscard]] block::detail::vector_matrix<T, void> as_vectors(const matrix& matrix) noexcept
{
  return {matrix.data, matrix.position_stride, matrix.type == element::float32};
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
