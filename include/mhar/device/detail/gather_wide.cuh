// SPDX-License-Identifier: Apache-2.0
//! Launches a backward pass over wide heads.
#pragma once

#include <mhar/device/detail/finish_rows.cuh>
#include <mhar/device/detail/output_gradient_wide.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Whether the device has room for the heads of a pass.
template <class T>
[[nodiscard]] bool has_room_for_wide(const gather_problem<T>& problem,
                                     const device_properties& properties) noexcept
{
  bool result = false;
  const head_split cut = split_of(problem.extent);
  const auto ask = [&](auto width, auto split, auto state) -> status {
    using gather =
        block::gather_wide<T, decltype(width)::value, decltype(state), decltype(split)::value>;
    result = has_room(properties, gather::shared_bytes(1, cut.pieces, cut.spread));
    return {};
  };
  const status asked = dispatch_wide<T>(problem.extent.head_width(), problem.states.type, ask);
  return asked.ok() && result;
}

template <class T>
[[nodiscard]] bool is_wide(const gather_problem<T>& problem,
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
         are_tensor_states(problem.states.gradient, problem.states.slot_stride) &&
         has_room_for_wide(problem, properties);
}

template <class T>
[[nodiscard]] block::gather_wide_params<T> wide_params_of(const gather_problem<T>& problem) noexcept
{
  block::gather_wide_params<T> pass;
  describe(problem, pass);
  pass.pieces = split_of(problem.extent).pieces;
  pass.spread = split_of(problem.extent).spread;
  pass.row_gradient = by_columns<T>(problem.row_gradient);
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
    part.call_gradient.type = element_of<T>::value;
    part.call_gradient.position_stride = problem.call_gradients.position_stride;
    part.dot = problem.dot + call * extent.num_positions * extent.num_heads;
    const status launched = output_gradient_wide(part, properties, where);
    if (!launched.ok()) { return launched; }
  }
  return {};
}

template <class T, int Width, bool Split, class State>
[[nodiscard]] status launch_gather_wide(const block::gather_wide_params<T>& pass, int chunks,
                                        const device_properties& properties,
                                        const context& where) noexcept
{
  using gather = block::gather_wide<T, Width, State, Split>;
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
  return launch(where, properties, shape, &kernel::gather_wide_kernel<T, Width, State, Split>,
                pass);
}

//! gather over wide heads; not_served() when the pass is one for another kernel.
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
  return gather_in_parts(problem, most, [&](const gather_problem<T>& part) {
    return dispatch_wide<T>(part.extent.head_width(), part.states.type,
                            [&](auto width, auto split, auto state) {
                              return launch_gather_wide<T, decltype(width)::value,
                                                        decltype(split)::value, decltype(state)>(
                                  wide_params_of(part), chunks_of(part.extent), properties, where);
                            });
  });
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
