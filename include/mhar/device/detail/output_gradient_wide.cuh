// SPDX-License-Identifier: Apache-2.0
//! Launches the gradient of a call's output over wide heads.
#pragma once

#include <mhar/device/detail/sweep_wide.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Columns of a warp of output_gradient_wide: as few as let its warps hold the width; 0 when they
//! cannot.
[[nodiscard]] inline int unit_width_of(const shape& extent) noexcept
{
  constexpr int most = 16;
  const std::int64_t width = extent.head_width();
  if (extent.num_heads > 8) { return 0; }
  if (width == 512) { return 512; }
  if (width % 256 == 0 && extent.width <= 256 * most) { return 256; }
  return width % 512 == 0 && extent.width <= 512 * most ? 512 : 0;
}

template <class T>
[[nodiscard]] bool is_wide(const output_gradient_problem<T>& problem,
                           const device_properties& properties) noexcept
{
  return properties.capability >= 90 && unit_width_of(problem.extent) > 0 &&
         problem.sites.rounding == key_rounding::none && problem.stage.norm == output_norm::none &&
         !problem.combined_gradient && is_tensor_matrix<T>(problem.output_gradient) &&
         is_tensor_matrix<T>(problem.mix) && is_tensor_matrix<T>(problem.call_gradient);
}

//! output_gradient over wide heads.
template <class T>
[[nodiscard]] status output_gradient_wide(const output_gradient_problem<T>& problem,
                                          const device_properties& properties,
                                          const context& where) noexcept
{
  if (!is_wide(problem, properties)) { return not_served(); }
  launch_shape shape;
  // Fewer sets of partial sums to read and write than there are chunks.
  shape.grid = static_cast<unsigned>((chunks_of(problem.extent) + 1) / 2);
  const auto launch_units = [&](auto width, auto split) {
    constexpr int w = decltype(width)::value;
    constexpr bool s = decltype(split)::value;
    using gradient = block::output_gradient_wide<T, w, s>;
    const int units = static_cast<int>(problem.extent.width) / w;
    shape.block = static_cast<unsigned>(32 * units * gradient::num_streams(units));
    return launch(where, properties, shape, &kernel::output_gradient_wide_kernel<T, w, s>, problem);
  };
  using narrow = cuda::std::integral_constant<int, 256>;
  using broad = cuda::std::integral_constant<int, 512>;
  const int width = unit_width_of(problem.extent);
  if (problem.extent.head_width() == width) {
    return width == 256 ? launch_units(narrow{}, cuda::std::false_type{})
                        : launch_units(broad{}, cuda::std::false_type{});
  }
  return width == 256 ? launch_units(narrow{}, cuda::std::true_type{})
                      : launch_units(broad{}, cuda::std::true_type{});
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
