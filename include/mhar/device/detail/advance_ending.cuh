// SPDX-License-Identifier: Apache-2.0
//! What follows the first call's mix: in the pass itself where columns end one by one, or in
//! registers that hold a position.
#pragma once

#include <mhar/device/detail/sweep_wide.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! A stage that needs the whole width at once, or a row of the first call's own.
template <class T>
[[nodiscard]] bool has_own_pass(const advance_problem<T>& problem) noexcept
{
  return problem.end == pass_end::finish_first &&
         (problem.private_row != nullptr || problem.stage.norm != output_norm::none);
}

template <class T>
[[nodiscard]] block::detail::mix_stage<T> stage_of(const advance_problem<T>& problem) noexcept
{
  return {by_columns<T>(problem.stage.partial), problem.stage.gate,
          by_columns<T>(problem.outputs.y), by_columns<T>(problem.outputs.combined),
          by_columns<T>(problem.outputs.mix)};
}

//! The greatest width that has a kernel.
inline constexpr std::int64_t max_ending_width = 8192;

//! Whether the first call of a pass ends in registers: what it reads and writes are vectors.
template <class T>
[[nodiscard]] bool ends_in_registers(const advance_problem<T>& problem) noexcept
{
  const output_stage& stage = problem.stage;
  const route_outputs<T>& outputs = problem.outputs;
  const bool has_stage =
      problem.extent.width % 8 == 0 && problem.extent.width <= max_ending_width &&
      is_vector_matrix<T>(stage.partial) && is_vector_matrix<T>(outputs.y) &&
      is_vector_matrix<T>(outputs.combined) && is_vector_matrix<T>(outputs.mix) &&
      (!stage.norm_weight ||
       (is_vector_element<T>(stage.norm_weight.type) && is_aligned_16(stage.norm_weight.data)));
  const bool has_row =
      problem.private_row == nullptr ||
      (problem.extent.head_width() % 8 == 0 && is_aligned_16(problem.private_row) &&
       problem.private_stride % 8 == 0 && is_aligned_16(problem.sites.query) &&
       problem.sites.bias == nullptr && problem.sites.rounding == key_rounding::none);
  return has_stage && has_row;
}

//! Whether it ends eight columns at a time, all of them vectors of T: the same bits by a kernel of
//! fewer registers.
template <class T>
[[nodiscard]] bool ends_in_columns(const advance_problem<T>& problem) noexcept
{
  const auto is_absent_or_vector = [](const auto& matrix) {
    return !matrix || is_tensor_matrix<T>(matrix);
  };
  return !has_own_pass(problem) && is_absent_or_vector(problem.stage.partial) &&
         is_absent_or_vector(problem.outputs.y) && is_absent_or_vector(problem.outputs.combined) &&
         is_absent_or_vector(problem.outputs.mix);
}

template <class T>
[[nodiscard]] block::detail::call_ending<T> ending_of(const advance_problem<T>& problem) noexcept
{
  const output_stage& stage = problem.stage;
  block::detail::call_ending<T> ending;
  ending.width = problem.extent.width;
  ending.num_heads = problem.extent.num_heads;
  ending.gate = stage.gate;
  ending.partial = as_vectors<T>(stage.partial);
  ending.mix = as_vectors<T>(problem.outputs.mix);
  ending.combined = as_vectors<T>(problem.outputs.combined);
  ending.y = as_vectors<T>(problem.outputs.y);
  ending.lse = problem.outputs.lse;
  ending.has_norm = stage.norm != output_norm::none;
  ending.norm_eps = static_cast<float>(stage.norm_eps);
  if (ending.has_norm) {
    ending.norm_weight =
        as_vectors<T>(const_matrix{stage.norm_weight.data, stage.norm_weight.type, 0});
  }
  ending.private_row = as_vectors<T>(
      const_matrix{problem.private_row, element_of<T>::value, problem.private_stride});
  if (problem.private_row != nullptr) {
    ending.query = problem.sites.query + problem.first_call * problem.extent.width;
    ending.eps = static_cast<float>(problem.eps);
    ending.private_inverse_rms = problem.private_inverse_rms;
  }
  return ending;
}

template <class T, int Vectors, int Warps, class State>
[[nodiscard]] status launch_ending(const block::end_call_params<T>& call,
                                   const device_properties& properties,
                                   const context& where) noexcept
{
  using end = block::end_call<T, Vectors, Warps, State>;
  launch_shape shape;
  shape.grid = static_cast<unsigned>((call.num_positions + end::positions_per_block - 1) /
                                     end::positions_per_block);
  shape.block = end::num_threads;
  shape.shared_memory = static_cast<std::size_t>(end::shared_bytes(call.ending));
  return launch(where, properties, shape, &kernel::end_call_kernel<T, Vectors, Warps, State>, call);
}

//! A warp per position, or eight; the choice decides about bits and must be the width's alone.
template <class State, class T>
[[nodiscard]] status launch_ending(const block::end_call_params<T>& call,
                                   const device_properties& properties,
                                   const context& where) noexcept
{
  const std::int64_t width = call.ending.width;
  if (width <= 512) { return launch_ending<T, 2, 1, State>(call, properties, where); }
  if (width <= 1280) { return launch_ending<T, 5, 1, State>(call, properties, where); }
  if (width <= 4096) { return launch_ending<T, 2, 8, State>(call, properties, where); }
  return launch_ending<T, 4, 8, State>(call, properties, where);
}

//! A call whose mix lies in its state.
template <class T>
[[nodiscard]] status end_call(const advance_problem<T>& problem,
                              const device_properties& properties, const context& where) noexcept
{
  block::end_call_params<T> call;
  call.num_positions = problem.extent.num_positions;
  call.state = first_state(problem.states, problem.states.mix);
  call.state_lse = problem.states.lse +
                   problem.states.first_slot * call.num_positions * problem.extent.num_heads;
  call.ending = ending_of(problem);
  return problem.states.type == element_of<T>::value
             ? launch_ending<T>(call, properties, where)
             : launch_ending<float>(call, properties, where);
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
