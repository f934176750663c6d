// SPDX-License-Identifier: Apache-2.0
//! Launches a forward pass on tensor cores.
#pragma once

#include <mhar/device/detail/advance_ending.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Whether the device has room for passes of this many rows, whatever the number of their calls and
//! what becomes of the first one.
template <class T>
[[nodiscard]] bool has_room_for_tiles(const advance_problem<T>& problem,
                                      const device_properties& properties) noexcept
{
  using policy = tuning::sweep_policy;
  const int heads = problem.extent.num_heads;
  bool has_all = true;
  static_cast<void>(dispatch_head_width(problem.extent.head_width(), [&](auto width) -> status {
    constexpr int w = decltype(width)::value;
    const auto add = [&](int bytes) { has_all = has_all && has_room(properties, bytes); };
    if (problem.num_rows > policy::short_rows) {
      for (int halves = 1; halves <= 2; ++halves) {
        add(block::advance_tiles_layout<T, w>{policy::advance_warps(halves),
                                              policy::advance_slots(w, halves), 8 * halves, heads,
                                              policy::max_positions_per_block, true}
                .total);
      }
      return {};
    }
    constexpr int many_calls = 16;
    add(starts_from_null(problem, properties)
            ? block::advance_rows<T, w, 1, float, 1, true, true>::shared_bytes(many_calls, heads)
            : block::advance_rows<T, w, 1, float, 1, true, false>::shared_bytes(many_calls, heads));
    return {};
  }));
  return has_all;
}

//! Whether a pass is one for tensor cores. Asks only for what a pass shares with the recomputation of
//! any of its calls, so that both take the same kernels: neither for the number of calls nor for what
//! becomes of the first one.
template <class T>
[[nodiscard]] bool serves(const advance_problem<T>& problem,
                          const device_properties& properties) noexcept
{
  return properties.capability >= 90 && has_tensor_kernel(problem.extent) &&
         are_tensor_sites(problem.sites) && problem.num_rows >= 1 &&
         (!starts_from_null(problem, properties) || problem.num_rows > max_wide_rows ||
          (problem.num_rows <= tuning::sweep_policy::short_null_rows &&
           is_aligned_16(problem.sites.null_source))) &&
         are_tensor_rows(rows_from(problem.rows, problem.first_row), problem.num_rows,
                         problem.extent.num_positions) &&
         are_tensor_states(problem.states.mix, problem.states.slot_stride) &&
         has_room_for_tiles(problem, properties);
}

//! Whether the first call of a pass has nothing to end but its stores.
template <class T>
[[nodiscard]] bool is_plain_ending(const advance_problem<T>& problem) noexcept
{
  const output_stage& stage = problem.stage;
  const route_outputs<T>& outputs = problem.outputs;
  return problem.end == pass_end::keep_all ||
         (problem.private_row == nullptr && !stage.partial && !stage.gate &&
          stage.norm == output_norm::none && !outputs.combined && outputs.y &&
          is_tensor_matrix<T>(outputs.y) &&
          (!outputs.mix || (outputs.mix.type == problem.states.type &&
                            are_tensor_states(outputs.mix.data, outputs.mix.position_stride))));
}

//! Whether the pass can end its first call. Where it cannot, the plain kernel takes that call alone.
template <class T>
[[nodiscard]] bool ends_on_tensor_cores(const advance_problem<T>& problem) noexcept
{
  return is_plain_ending(problem) || ends_in_registers(problem);
}

template <class T>
[[nodiscard]] block::advance_tensor_params<T> params_of(const advance_problem<T>& problem) noexcept
{
  block::advance_tensor_params<T> pass;
  describe(problem, pass);
  pass.inverse_width = 1.0f / static_cast<float>(problem.extent.full_width());
  pass.eps = static_cast<float>(problem.eps);
  pass.has_new_row = problem.num_new_rows >= 1;
  if (!is_plain_ending(problem)) {
    pass.has_ending = true;
    pass.ending = ending_of(problem);
    return pass;
  }
  pass.y = static_cast<T*>(problem.outputs.y.data);
  pass.y_stride = problem.outputs.y.position_stride;
  pass.mix = problem.outputs.mix.data;
  pass.mix_stride = problem.outputs.mix.position_stride;
  pass.lse = problem.outputs.lse;
  return pass;
}

//! Few rows: one block per eight positions. Where all blocks fit side by side, each gets a
//! multiprocessor to itself: with room for two, blocks of the next pass come to lie two on one while
//! others have none, and the pass takes as long as the two. Where they come in waves, two run at a
//! time as far as their registers allow: one reads while the other computes. Both do the same
//! arithmetic.
template <class T, int HeadWidth, int Rows, class State, bool Ends, bool HasNull>
[[nodiscard]] status launch_advance_rows(const block::advance_tensor_params<T>& pass,
                                         const device_properties& properties,
                                         const context& where) noexcept
{
  constexpr int most =
      tuning::sweep_policy::advance_rows_blocks(HeadWidth, Rows, static_cast<int>(sizeof(State)));
  using advance = block::advance_rows<T, HeadWidth, Rows, State, most, Ends, HasNull>;
  launch_shape shape;
  shape.grid = static_cast<unsigned>((pass.num_positions + 7) / 8);
  shape.block = static_cast<unsigned>(32 * pass.num_heads);
  // Without a call, too, a query's place is read.
  shape.shared_memory = static_cast<std::size_t>(
      advance::shared_bytes(pass.num_calls < 1 ? 1 : pass.num_calls, pass.num_heads));
  const bool alone = shape.grid.x <= static_cast<unsigned>(properties.multiprocessors);
  const auto half = static_cast<std::size_t>(properties.shared_memory_per_multiprocessor / 2);
  if (alone && shape.shared_memory < half) { shape.shared_memory = half; }
  constexpr int least = HasNull ? most : 1;
  return launch(where, properties, shape,
                alone
                    ? &kernel::advance_rows_kernel<T, HeadWidth, Rows, State, least, Ends, HasNull>
                    : &kernel::advance_rows_kernel<T, HeadWidth, Rows, State, most, Ends, HasNull>,
                pass);
}

//! Many rows: one block per multiprocessor where the positions allow it.
template <class T, int HeadWidth, int Halves, class State, bool Ends>
[[nodiscard]] status launch_advance_tiles(block::advance_tensor_params<T> pass,
                                          const device_properties& properties,
                                          const context& where) noexcept
{
  using policy = tuning::sweep_policy;
  constexpr int most_calls = 8 * Halves;
  constexpr int warps = policy::advance_warps(Halves);
  pass.positions_per_block = static_cast<int>(positions_per_block(
      pass.num_positions, properties.multiprocessors, policy::max_positions_per_block));
  const int calls = pass.num_calls < most_calls ? pass.num_calls : most_calls;
  const block::advance_tiles_layout<T, HeadWidth> layout{warps,
                                                         policy::advance_slots(HeadWidth, Halves),
                                                         calls,
                                                         pass.num_heads,
                                                         pass.positions_per_block,
                                                         Ends};
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>((pass.num_positions + pass.positions_per_block - 1) /
                                          pass.positions_per_block),
                    static_cast<unsigned>((pass.num_calls + most_calls - 1) / most_calls));
  shape.block = 32 * warps;
  shape.shared_memory = static_cast<std::size_t>(layout.total);
  return launch(where, properties, shape,
                &kernel::advance_tiles_kernel<T, HeadWidth, Halves, State, Ends>, pass);
}

//! The kernel for the number of rows; the number of calls must not change a call's bits.
template <class T, int HeadWidth, class State, bool Ends>
[[nodiscard]] status launch_advance(const block::advance_tensor_params<T>& pass,
                                    const device_properties& properties,
                                    const context& where) noexcept
{
  static_assert(tuning::sweep_policy::short_rows == 6 && tuning::sweep_policy::short_null_rows == 3,
                "the numbers of rows below end there");
  if (pass.num_rows <= tuning::sweep_policy::short_rows) {
    if (pass.null_source != nullptr) {
      return dispatch_at_least<1, 2, 3>(pass.num_rows, not_served(), [&](auto rows) {
        return launch_advance_rows<T, HeadWidth, decltype(rows)::value, State, Ends, true>(
            pass, properties, where);
      });
    }
    return dispatch_at_least<1, 2, 3, 4, 5, 6>(pass.num_rows, not_served(), [&](auto rows) {
      return launch_advance_rows<T, HeadWidth, decltype(rows)::value, State, Ends, false>(
          pass, properties, where);
    });
  }
  return pass.num_calls <= 8
             ? launch_advance_tiles<T, HeadWidth, 1, State, Ends>(pass, properties, where)
             : launch_advance_tiles<T, HeadWidth, 2, State, Ends>(pass, properties, where);
}

//! A pass that `serves` and `ends_on_tensor_cores`. Of several new rows all but the last get their
//! inverse rms from passes of their own, without a call.
template <class T>
[[nodiscard]] status advance_tensor(const advance_problem<T>& problem,
                                    const device_properties& properties,
                                    const context& where) noexcept
{
  return dispatch_tensor<T>(
      problem.extent.head_width(), problem.states.type, [&](auto width, auto state) {
        constexpr int head_width = decltype(width)::value;
        for (int n = problem.num_new_rows; n > 1; --n) {
          advance_problem<T> row = problem;
          row.first_row += problem.num_rows - n;
          row.num_rows = row.num_new_rows = 1;
          row.num_calls = 0;
          row.start = pass_start::fresh;
          row.end = pass_end::keep_all;
          const status launched =
              launch_advance_rows<T, head_width, 1, decltype(state), false, false>(
                  params_of(row), properties, where);
          if (!launched.ok()) { return launched; }
        }
        const block::advance_tensor_params<T> pass = params_of(problem);
        return pass.has_ending
                   ? launch_advance<T, head_width, decltype(state), true>(pass, properties, where)
                   : launch_advance<T, head_width, decltype(state), false>(pass, properties, where);
      });
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
