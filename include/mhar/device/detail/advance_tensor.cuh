// SPDX-License-Identifier: Apache-2.0
//! Launches a forward pass on tensor cores.
#pragma once

#include <mhar/device/detail/sweep_tensor.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Depends on nothing that differs between a pass and its recomputation but the stage of the first
//! call, and on the number of calls not at all.
[[nodiscard]] inline bool serves(const advance_problem<bfloat16>& problem,
                                 const device_properties& properties) noexcept
{
  const output_stage& stage = problem.stage;
  const route_outputs<bfloat16>& outputs = problem.outputs;
  const bool plain_output = !stage.partial && !stage.gate && stage.norm == output_norm::none &&
                            !outputs.combined && !outputs.mix && outputs.y &&
                            is_tensor_matrix(outputs.y);
  return properties.capability >= 90 && has_tensor_kernel(problem.extent) &&
         are_tensor_sites(problem.sites) && problem.sites.null_source == nullptr &&
         problem.private_row == nullptr && problem.num_rows >= 1 && problem.num_new_rows <= 1 &&
         problem.num_rows <= tuning::sweep_policy::max_advance_rows &&
         are_tensor_rows(rows_from(problem.rows, problem.first_row), problem.num_rows,
                         problem.extent.num_positions) &&
         are_tensor_states(problem.states.mix, problem.states.slot_stride) &&
         (problem.end == pass_end::keep_all || plain_output);
}

[[nodiscard]] inline block::advance_tensor_params params_of(
    const advance_problem<bfloat16>& problem) noexcept
{
  const shape& extent = problem.extent;
  const const_rows<bfloat16> rows = rows_from(problem.rows, problem.first_row);
  const std::int64_t slot = problem.states.first_slot;
  block::advance_tensor_params pass;
  pass.num_positions = extent.num_positions;
  pass.width = extent.width;
  pass.inverse_width = 1.0f / static_cast<float>(extent.full_width());
  pass.num_heads = extent.num_heads;
  pass.eps = static_cast<float>(problem.eps);
  pass.queries = {problem.sites.packed, extent.width};
  pass.first_call = problem.first_call;
  pass.num_calls = problem.num_calls;
  pass.rows = rows.row(0);
  pass.row_stride = stride_of(rows, problem.num_rows);
  pass.position_stride = rows.position_stride;
  pass.num_rows = problem.num_rows;
  pass.has_new_row = problem.num_new_rows == 1;
  pass.inverse_rms = problem.inverse_rms + problem.first_row * extent.num_positions;
  pass.kept = problem.start == pass_start::kept;
  pass.finishes = problem.end == pass_end::finish_first;
  pass.slot_stride = problem.states.slot_stride;
  if (problem.states.mix != nullptr) {
    pass.states = static_cast<char*>(problem.states.mix) +
                  slot * problem.states.slot_stride * size_of(problem.states.type);
    pass.state_lse = problem.states.lse + slot * extent.num_positions * extent.num_heads;
  }
  pass.y = static_cast<bfloat16*>(problem.outputs.y.data);
  pass.y_stride = problem.outputs.y.position_stride;
  pass.lse = problem.outputs.lse;
  return pass;
}

//! Few rows: one block per eight positions. Where the positions do not fill the device, a block may
//! have all registers.
template <int HeadWidth, int Rows, class State>
[[nodiscard]] status launch_advance_rows(const block::advance_tensor_params& pass,
                                         const device_properties& properties,
                                         const context& where) noexcept
{
  launch_shape shape;
  const std::int64_t blocks = (pass.num_positions + 7) / 8;
  shape.grid = static_cast<unsigned>(blocks);
  shape.block = static_cast<unsigned>(32 * pass.num_heads);
  if (Rows <= 2 && blocks > properties.multiprocessors) {
    return launch(where, properties, shape, &kernel::advance_rows_kernel < HeadWidth, Rows, State,
                  Rows <= 2 ? 2 : 1 >, pass);
  }
  return launch(where, properties, shape, &kernel::advance_rows_kernel<HeadWidth, Rows, State, 1>,
                pass);
}

//! Many rows: as many teams as shared memory has room for, with two buffers each where all fit.
template <int HeadWidth, int Chunks, int TeamWarps, class State>
[[nodiscard]] status launch_advance_tiles(block::advance_tensor_params pass,
                                          const device_properties& properties,
                                          const context& where) noexcept
{
  using tiles = block::advance_tiles<HeadWidth, Chunks, TeamWarps, State>;
  constexpr int all_teams = tuning::sweep_policy::advance_threads(Chunks) / 32 / TeamWarps;
  const int clusters =
      tuning::sweep_policy::num_clusters(properties.multiprocessors, pass.num_heads);
  pass.positions_per_block = static_cast<int>(positions_per_block(
      pass.num_positions, clusters, tuning::sweep_policy::max_positions_per_block));
  const auto bytes_of = [&](int buffers) {
    const typename tiles::layout layout{pass.num_calls, pass.num_rows, pass.num_heads,
                                        pass.positions_per_block, buffers};
    return layout.total;
  };
  pass.num_teams = all_teams;
  pass.buffers_per_team = bytes_of(2 * all_teams) <= properties.shared_memory_per_block ? 2 : 1;
  while (pass.num_teams > 1 &&
         bytes_of(pass.num_teams * pass.buffers_per_team) > properties.shared_memory_per_block) {
    --pass.num_teams;
  }
  const int bytes = bytes_of(pass.num_teams * pass.buffers_per_team);
  if (bytes > properties.shared_memory_per_block) { return not_served(); }
  const int warps = pass.num_teams * TeamWarps;
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(pass.num_heads),
                    static_cast<unsigned>((pass.num_positions + pass.positions_per_block - 1) /
                                          pass.positions_per_block));
  shape.block = static_cast<unsigned>(32 * (warps < 8 ? 8 : warps));
  shape.shared_memory = static_cast<std::size_t>(bytes);
  shape.cluster = pass.has_new_row ? static_cast<unsigned>(pass.num_heads) : 1;
  return launch(where, properties, shape,
                &kernel::advance_tiles_kernel<HeadWidth, Chunks, TeamWarps, State>, pass);
}

//! The kernel for the number of rows; the number of calls must not change a call's bits.
template <int HeadWidth, class State>
[[nodiscard]] status launch_advance(const block::advance_tensor_params& pass,
                                    const device_properties& properties,
                                    const context& where) noexcept
{
  if (pass.num_rows <= tuning::sweep_policy::short_range) {
    return dispatch_at_least<1, 2, 3, 4>(pass.num_rows, not_served(), [&](auto rows) {
      return launch_advance_rows<HeadWidth, decltype(rows)::value, State>(pass, properties, where);
    });
  }
  return dispatch_at_least<1, 2, 4, 8, 16>(
      (pass.num_rows + 15) / 16, not_served(), [&](auto chunks) {
        constexpr int count = decltype(chunks)::value;
        return pass.num_calls <= 8
                   ? launch_advance_tiles<HeadWidth, count, 1, State>(pass, properties, where)
                   : launch_advance_tiles<HeadWidth, count, 2, State>(pass, properties, where);
      });
}

//! advance on tensor cores, T being bfloat16; not_served() when the pass is one for the plain kernel. A template, so that who
//! only includes this file compiles no kernel.
template <class T>
[[nodiscard]] status advance_tensor(const advance_problem<T>& problem,
                                    const device_properties& properties,
                                    const context& where) noexcept
{
  if (!serves(problem, properties)) { return not_served(); }
  return dispatch_tensor(problem.extent.head_width(), problem.states.type,
                         [&](auto width, auto state) {
                           return launch_advance<decltype(width)::value, decltype(state)>(
                               params_of(problem), properties, where);
                         });
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
