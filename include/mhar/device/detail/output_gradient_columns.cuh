// SPDX-License-Identifier: Apache-2.0
//! Launches the gradient of a call's output whose columns fit in registers.
#pragma once

#include <mhar/device/detail/output_gradient_wide.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! A null source has a kernel of its own, behind this one.
template <class T>
[[nodiscard]] bool is_in_columns(const output_gradient_problem<T>& problem) noexcept
{
  const shape& extent = problem.extent;
  const const_array& weight = problem.stage.norm_weight;
  return extent.width <= 4096 && has_fast_heads(extent) &&
         is_vector_matrix<T>(problem.output_gradient) &&
         is_vector_matrix<T>(problem.combined_gradient) && is_vector_matrix<T>(problem.combined) &&
         is_vector_matrix<T>(problem.mix) && is_tensor_matrix<T>(problem.call_gradient) &&
         is_vector_matrix<T>(problem.partial_gradient) &&
         problem.partial_gradient.mode == update::store &&
         (!weight || (is_vector_element<T>(weight.type) && is_aligned_16(weight.data)));
}

template <class T>
[[nodiscard]] block::output_gradient_columns_params<T> columns_params_of(
    const output_gradient_problem<T>& problem) noexcept
{
  const output_stage& stage = problem.stage;
  const gradient_partials<float>& partials = problem.partials;
  block::output_gradient_columns_params<T> call;
  call.num_positions = problem.extent.num_positions;
  call.width = problem.extent.width;
  call.num_heads = problem.extent.num_heads;
  call.output_gradient = as_vectors<T>(problem.output_gradient);
  call.combined_gradient = as_vectors<T>(problem.combined_gradient);
  call.mix = as_vectors<T>(problem.mix);
  call.call_gradient = static_cast<T*>(problem.call_gradient.data);
  call.call_stride = problem.call_gradient.position_stride;
  call.partial_gradient = as_vectors<T>(problem.partial_gradient);
  call.dot = problem.dot;
  if (stage.norm != output_norm::none) {
    call.has_norm = true;
    call.norm_eps = static_cast<float>(stage.norm_eps);
    call.norm_weight =
        as_vectors<T>(const_matrix{stage.norm_weight.data, stage.norm_weight.type, 0});
    call.combined = as_vectors<T>(problem.combined);
    call.mix_is_combined = problem.mix.data == problem.combined.data &&
                           problem.mix.type == problem.combined.type &&
                           problem.mix.position_stride == problem.combined.position_stride;
    if (partials.output_norm != nullptr) {
      call.norm_sums = partials.output_norm + problem.call * call.width;
      call.chunk_stride = partials.num_calls * call.width;
    }
  }
  if (partials.gate != nullptr) {
    call.gate_sums = partials.gate + problem.call;
    call.gate_stride = partials.num_calls;
  }
  return call;
}

template <class T, int Vectors, int Warps>
[[nodiscard]] status launch_output_gradient(const block::output_gradient_columns_params<T>& call,
                                            int chunks, const device_properties& properties,
                                            const context& where) noexcept
{
  using gradient = block::output_gradient_columns<T, Vectors, Warps>;
  launch_shape shape;
  shape.grid = static_cast<unsigned>(chunks);
  shape.block = gradient::num_threads;
  shape.shared_memory = static_cast<std::size_t>(gradient::shared_bytes(call.width));
  return launch(where, properties, shape,
                &kernel::output_gradient_columns_kernel<T, Vectors, Warps>, call);
}

//! Whether the heads are narrow and everything is stored as T: dy, o and the mix can be copied whole.
template <class T>
[[nodiscard]] bool is_normed_heads(const output_gradient_problem<T>& problem,
                                   const device_properties& properties) noexcept
{
  const auto is_row_type = [](const const_matrix& matrix) { return is_tensor_matrix<T>(matrix); };
  return properties.capability >= 90 && has_tensor_kernel(problem.extent) &&
         problem.stage.norm != output_norm::none && !problem.combined_gradient &&
         is_row_type(problem.output_gradient) && is_row_type(problem.combined) &&
         is_row_type(problem.mix) && is_aligned_16(problem.partials.output_norm) &&
         (!problem.partial_gradient || is_tensor_matrix<T>(problem.partial_gradient));
}

//! not_served() where the device has no room for a ring of the call's matrices.
template <class T>
[[nodiscard]] status launch_normed_heads(const block::output_gradient_columns_params<T>& call,
                                         const shape& extent, const device_properties& properties,
                                         const context& where) noexcept
{
  return dispatch_head_width(extent.head_width(), [&](auto width) {
    constexpr int w = decltype(width)::value;
    using gradient = block::output_gradient_normed<T, w>;
    const int bytes = gradient::shared_bytes(call);
    if (!has_room(properties, bytes)) { return not_served(); }
    launch_shape shape;
    shape.grid = static_cast<unsigned>(
        (std::min)(chunks_of(extent), static_cast<int>(properties.multiprocessors)));
    shape.block = gradient::num_threads;
    shape.shared_memory = static_cast<std::size_t>(bytes);
    return launch(where, properties, shape, &kernel::output_gradient_normed_kernel<T, w>, call);
  });
}

//! output_gradient; not_served() when the call is one for the plain kernel.
template <class T>
[[nodiscard]] status output_gradient_columns(const output_gradient_problem<T>& problem,
                                             const device_properties& properties,
                                             const context& where) noexcept
{
  if (!is_in_columns(problem)) { return not_served(); }
  block::output_gradient_columns_params<T> call = columns_params_of(problem);
  // The null source's parts are made of do: the kernel of a call without an output norm takes it as
  // its dy, in place.
  output_gradient_problem<T> rest = problem;
  const bool has_null = problem.sites.null_source != nullptr;
  if (has_null) {
    rest.stage.norm = output_norm::none;
    rest.output_gradient = {problem.call_gradient.data, problem.call_gradient.type,
                            problem.call_gradient.position_stride};
    rest.combined_gradient = {};
    rest.partial_gradient = {};
    if (!is_wide(rest, properties)) { return not_served(); }
    call.dot = nullptr;
    call.gate_sums = nullptr;
  }
  const int chunks = chunks_of(problem.extent);
  constexpr int columns_of_warp = 256;
  const auto vectors = static_cast<int>((call.width + columns_of_warp - 1) / columns_of_warp);
  status launched = not_served();
  if (is_normed_heads(problem, properties)) {
    launched = launch_normed_heads(call, problem.extent, properties, where);
  }
  if (launched.code == code::unsupported) {
    launched =
        vectors > 5
            ? (vectors <= 8 ? launch_output_gradient<T, 1, 8>(call, chunks, properties, where)
                            : launch_output_gradient<T, 2, 8>(call, chunks, properties, where))
            : dispatch_at_least<1, 2, 4, 5>(vectors, not_served(), [&](auto count) {
                return launch_output_gradient<T, decltype(count)::value, 1>(call, chunks,
                                                                            properties, where);
              });
  }
  if (!launched.ok() || !has_null) { return launched; }
  return output_gradient_wide(rest, properties, where);
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
