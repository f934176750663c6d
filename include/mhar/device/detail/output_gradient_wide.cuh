// SPDX-License-Identifier: Apache-2.0
//! Launches the gradient of a call's output over wide heads.
#pragma once

#include <mhar/device/detail/sweep_wide.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Columns of a warp of output_gradient_wide: as few as let its warps hold the width, or the head
//! where that is narrower; 0 when they cannot.
[[nodiscard]] inline int unit_width_of(const shape& extent) noexcept
{
  constexpr int most = 16;
  const std::int64_t width = extent.head_width();
  if (extent.num_heads > 8) { return 0; }
  if (has_tensor_kernel(extent)) { return static_cast<int>(width); }
  if (width == 512) { return 512; }
  if (width % 256 == 0 && extent.width <= 256 * most) { return 256; }
  return width % 512 == 0 && extent.width <= 512 * most ? 512 : 0;
}

template <class T>
[[nodiscard]] bool is_wide(const output_gradient_problem<T>& problem,
                           const device_properties& properties) noexcept
{
  const bool is_narrow = has_tensor_kernel(problem.extent);
  return properties.capability >= 90 && unit_width_of(problem.extent) > 0 &&
         (!is_narrow || problem.sites.null_source != nullptr) &&
         problem.sites.rounding == key_rounding::none && problem.stage.norm == output_norm::none &&
         is_aligned_16(problem.sites.query) && is_aligned_16(problem.sites.null_source) &&
         is_aligned_16(problem.partials.query) && is_aligned_16(problem.partials.null_source) &&
         !problem.combined_gradient && is_tensor_matrix<T>(problem.output_gradient) &&
         is_tensor_matrix<T>(problem.mix) && is_tensor_matrix<T>(problem.call_gradient);
}

//! output_gradient over wide heads, or narrow ones with a null source.
template <class T>
[[nodiscard]] status output_gradient_wide(const output_gradient_problem<T>& problem,
                                          const device_properties& properties,
                                          const context& where) noexcept
{
  if (!is_wide(problem, properties)) { return not_served(); }
  launch_shape shape;
  // A block per multiprocessor: fewer sets of partial sums to read and write than there are chunks.
  shape.grid = static_cast<unsigned>(
      (std::min)(chunks_of(problem.extent), static_cast<int>(properties.multiprocessors)));
  const auto launch_units = [&](auto width, auto split) {
    constexpr int w = decltype(width)::value;
    constexpr bool s = decltype(split)::value;
    using gradient = block::output_gradient_wide<T, w, s>;
    const int units = static_cast<int>(problem.extent.width) / w;
    shape.block = static_cast<unsigned>(32 * units * gradient::num_streams(units));
    return launch(where, properties, shape, &kernel::output_gradient_wide_kernel<T, w, s>, problem);
  };
  const int width = unit_width_of(problem.extent);
  const auto launch_whole = [&](auto w) { return launch_units(w, cuda::std::false_type{}); };
  const auto launch_split = [&](auto w) { return launch_units(w, cuda::std::true_type{}); };
  using cuda::std::integral_constant;
  if (problem.extent.head_width() != width) {
    return width == 256 ? launch_split(integral_constant<int, 256>{})
                        : launch_split(integral_constant<int, 512>{});
  }
  switch (width) {
    case 64: return launch_whole(integral_constant<int, 64>{});
    case 128: return launch_whole(integral_constant<int, 128>{});
    case 160: return launch_whole(integral_constant<int, 160>{});
    case 256: return launch_whole(integral_constant<int, 256>{});
    default: return launch_whole(integral_constant<int, 512>{});
  }
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
