// SPDX-License-Identifier: Apache-2.0
//! Launches the gradient of a call's output over wide heads, or over narrow ones with a null source.
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
  const bool is_served = has_tensor_kernel(problem.extent) ? problem.sites.null_source != nullptr
                                                           : unit_width_of(problem.extent) > 0;
  return properties.capability >= 90 && is_served && problem.sites.rounding == key_rounding::none &&
         problem.stage.norm == output_norm::none && is_aligned_16(problem.sites.query) &&
         is_aligned_16(problem.sites.null_source) && is_aligned_16(problem.partials.query) &&
         is_aligned_16(problem.partials.null_source) && !problem.combined_gradient &&
         is_tensor_matrix<T>(problem.output_gradient) && is_tensor_matrix<T>(problem.mix) &&
         is_tensor_matrix<T>(problem.call_gradient);
}

//! output_gradient that is_wide; not_served() when it is one for another kernel.
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
  if (has_tensor_kernel(problem.extent)) {
    return dispatch_head_width(problem.extent.head_width(), [&](auto width) {
      constexpr int w = decltype(width)::value;
      using gradient = block::output_gradient_heads<T, w>;
      shape.block = gradient::num_threads;
      shape.shared_memory = static_cast<std::size_t>(gradient::shared_bytes());
      return launch(where, properties, shape, &kernel::output_gradient_heads_kernel<T, w>, problem);
    });
  }
  const int width = unit_width_of(problem.extent);
  const auto launch_whole = [&](auto w) { return launch_units(w, cuda::std::false_type{}); };
  const auto launch_split = [&](auto w) { return launch_units(w, cuda::std::true_type{}); };
  using cuda::std::integral_constant;
  if (problem.extent.head_width() != width) {
    return width == 256 ? launch_split(integral_constant<int, 256>{})
                        : launch_split(integral_constant<int, 512>{});
  }
  return width == 256 ? launch_whole(integral_constant<int, 256>{})
                      : launch_whole(integral_constant<int, 512>{});
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
