// SPDX-License-Identifier: Apache-2.0
//! Launches a backward pass over wide heads, one that finishes a row without reading a call, and
//! the gradient of a call's output.
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
  const bool is_short = extent.num_heads <= 8;
  if (width == 512 && is_short) { return 512; }
  if (width % 256 == 0 && is_short && extent.width <= 256 * most) { return 256; }
  return width % 512 == 0 && is_short && extent.width <= 512 * most ? 512 : 0;
}

[[nodiscard]] inline bool is_wide(const output_gradient_problem<bfloat16>& problem,
                                  const device_properties& properties) noexcept
{
  return properties.capability >= 90 && unit_width_of(problem.extent) > 0 &&
         problem.sites.rounding == key_rounding::none && problem.stage.norm == output_norm::none &&
         !problem.combined_gradient && is_tensor_matrix(problem.output_gradient) &&
         is_tensor_matrix(problem.mix) && is_tensor_matrix(problem.call_gradient);
}

//! output_gradient over wide heads, T being bfloat16.
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
    using gradient = block::output_gradient_wide<w, s>;
    const int units = static_cast<int>(problem.extent.width) / w;
    shape.block = static_cast<unsigned>(32 * units * gradient::num_streams(units));
    return launch(where, properties, shape, &kernel::output_gradient_wide_kernel<w, s>, problem);
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

[[nodiscard]] inline bool is_wide(const gather_problem<bfloat16>& problem,
                                  const device_properties& properties) noexcept
{
  const shape& extent = problem.extent;
  return has_wide_kernel(extent, properties) && are_tensor_sites(problem.sites) &&
         problem.partials.bias == nullptr && problem.num_calls >= 1 && problem.num_calls <= 8 &&
         are_vector_rows(rows_from(problem.rows, problem.top_row - problem.num_rows + 1),
                         problem.num_rows, extent) &&
         are_vector_rows(rows_from(problem.call_gradients, problem.first_call), problem.num_calls,
                         extent) &&
         are_vector_rows(rows_from(problem.mixes, problem.first_call), problem.num_new_calls,
                         extent) &&
         is_aligned_16(problem.partials.query) &&
         are_tensor_states(problem.states.gradient, problem.states.slot_stride);
}

[[nodiscard]] inline block::gather_wide_params wide_params_of(
    const gather_problem<bfloat16>& problem) noexcept
{
  const shape& extent = problem.extent;
  const std::int64_t positions = extent.num_positions;
  const const_rows<bfloat16> rows = rows_from(problem.rows, problem.top_row - problem.num_rows + 1);
  const const_rows<bfloat16> calls = rows_from(problem.call_gradients, problem.first_call);
  block::gather_wide_params pass;
  pass.num_positions = positions;
  pass.width = extent.width;
  pass.inverse_width = 1.0f / static_cast<float>(extent.full_width());
  pass.num_heads = extent.num_heads;
  pass.pieces = split_of(extent).pieces;
  pass.spread = split_of(extent).spread;
  pass.queries = {problem.sites.packed, extent.width};
  pass.gate = problem.sites.gate + problem.first_call;
  pass.logit_gate = problem.sites.logit_gate + problem.first_call;
  pass.first_call = problem.first_call;
  pass.num_calls = problem.num_calls;
  pass.call_gradients = calls.row(0);
  pass.call_stride = stride_of(calls, problem.num_calls);
  pass.call_position_stride = calls.position_stride;
  pass.lse = problem.lse + problem.first_call * positions * extent.num_heads;
  pass.dot = problem.dot + problem.first_call * positions * extent.num_heads;
  pass.rows = rows.row(problem.num_rows - 1);
  pass.row_stride = -stride_of(rows, problem.num_rows);
  pass.position_stride = rows.position_stride;
  pass.num_rows = problem.num_rows;
  pass.inverse_rms = problem.inverse_rms + problem.top_row * positions;
  pass.kept = problem.start == pass_start::kept;
  pass.finishes = problem.end == pass_end::finish_first;
  pass.slot_stride = problem.states.slot_stride;
  if (problem.states.gradient != nullptr) {
    const std::int64_t slot = problem.states.first_slot;
    pass.states = static_cast<char*>(problem.states.gradient) +
                  slot * problem.states.slot_stride * size_of(problem.states.type);
    pass.head_sums = problem.states.head_sum + slot * positions;
  }
  pass.row_gradient = by_columns(problem.row_gradient);
  if (problem.partials.query != nullptr) {
    pass.query_sums = problem.partials.query + problem.first_call * extent.width;
    pass.chunk_stride = problem.partials.num_calls * extent.width;
  }
  return pass;
}

//! D of the calls that have none yet: what output_gradient computes for a call that is a plain mix.
template <class T>
[[nodiscard]] status find_dots(const gather_problem<T>& problem,
                               const device_properties& properties, const context& where) noexcept
{
  const shape& extent = problem.extent;
  for (int call = problem.first_call; call < problem.first_call + problem.num_new_calls; ++call) {
    output_gradient_problem<T> part;
    part.extent = extent;
    part.call = call;
    part.sites = problem.sites;
    part.sites.null_source = nullptr;
    part.output_gradient = {problem.call_gradients.row(call),
                            problem.call_gradients.position_stride};
    part.mix = {problem.mixes.row(call), problem.mixes.position_stride};
    part.call_gradient.data = const_cast<T*>(problem.call_gradients.row(call));
    part.call_gradient.type = element::bfloat16;
    part.call_gradient.position_stride = problem.call_gradients.position_stride;
    part.dot = problem.dot + call * extent.num_positions * extent.num_heads;
    const status launched = output_gradient_wide(part, properties, where);
    if (!launched.ok()) { return launched; }
  }
  return {};
}

template <int Width, bool Split, class State>
[[nodiscard]] status launch_gather_wide(const block::gather_wide_params& pass, int chunks,
                                        const device_properties& properties,
                                        const context& where) noexcept
{
  using gather = block::gather_wide<Width, State, Split>;
  const auto bytes_of = [&pass](int teams) {
    return gather::shared_bytes(teams, pass.pieces, pass.spread);
  };
  const int teams = teams_of(pass.pieces, gather::max_threads, properties, bytes_of);
  const int blocks = pass.num_heads * pass.spread;
  const int clusters = tuning::sweep_policy::num_clusters(properties.multiprocessors, blocks);
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(blocks),
                    static_cast<unsigned>(clusters < chunks ? clusters : chunks));
  shape.block = static_cast<unsigned>(32 * pass.pieces * teams);
  shape.shared_memory = static_cast<std::size_t>(bytes_of(teams));
  shape.cluster = static_cast<unsigned>(blocks);
  return launch(where, properties, shape, &kernel::gather_wide_kernel<Width, State, Split>, pass);
}

//! A kept top row without calls: the norm's part is all that its gradient lacks.
template <class T>
[[nodiscard]] status finish_row(const gather_problem<T>& problem,
                                const device_properties& properties, const context& where) noexcept
{
  const shape& extent = problem.extent;
  const const_rows<T> rows = rows_from(problem.rows, problem.top_row);
  const bool is_served = problem.num_calls == 0 && problem.num_rows == 1 &&
                         problem.start == pass_start::kept &&
                         problem.end == pass_end::finish_first && problem.row_gradient &&
                         are_vector_rows(rows, 1, extent) &&
                         are_tensor_states(problem.states.gradient, problem.states.slot_stride);
  if (!is_served) { return not_served(); }
  const std::int64_t slot = problem.states.first_slot;
  block::finish_row_params row;
  row.width = extent.width;
  row.inverse_width = 1.0f / static_cast<float>(extent.full_width());
  row.row = rows.row(0);
  row.position_stride = rows.position_stride;
  row.state = static_cast<const char*>(problem.states.gradient) +
              slot * problem.states.slot_stride * size_of(problem.states.type);
  row.head_sum = problem.states.head_sum + slot * extent.num_positions;
  row.inverse_rms = problem.inverse_rms + problem.top_row * extent.num_positions;
  row.gradient = by_columns(problem.row_gradient);
  launch_shape shape;
  shape.grid = static_cast<unsigned>(extent.num_positions);
  shape.block = 256;
  return problem.states.type == element::bfloat16
             ? launch(where, properties, shape, &kernel::finish_row_kernel<T>, row)
             : launch(where, properties, shape, &kernel::finish_row_kernel<float>, row);
}

//! gather over wide heads, T being bfloat16; not_served() when the pass is one for another kernel.
//! More rows than a kernel takes are several passes over the same calls.
template <class T>
[[nodiscard]] status gather_wide(const gather_problem<T>& problem,
                                 const device_properties& properties, const context& where) noexcept
{
  if (problem.num_calls == 0) { return finish_row(problem, properties, where); }
  if (!is_wide(problem, properties)) { return not_served(); }
  const status found = find_dots(problem, properties, where);
  if (!found.ok()) { return found; }
  constexpr int most = 8;
  for (int first = 0; first < problem.num_rows; first += most) {
    gather_problem<T> part = problem;
    part.top_row -= first;
    part.num_rows = problem.num_rows - first < most ? problem.num_rows - first : most;
    part.states.first_slot += first;
    if (first > 0) { part.end = pass_end::keep_all; }
    const status launched = dispatch_wide(
        part.extent.head_width(), part.states.type, [&](auto width, auto split, auto state) {
          return launch_gather_wide<decltype(width)::value, decltype(split)::value,
                                    decltype(state)>(wide_params_of(part), chunks_of(part.extent),
                                                     properties, where);
        });
    if (!launched.ok()) { return launched; }
  }
  return {};
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
