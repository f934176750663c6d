// SPDX-License-Identifier: Apache-2.0
//! Launches a forward pass over wide heads, or over few rows from a null source.
#pragma once

#include <mhar/device/detail/finish_rows.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Calls of a kernel; queries of a split head are as wide as it is.
[[nodiscard]] inline int most_wide_calls(const shape& extent) noexcept
{
  return split_of(extent).is_split() ? 8 : 16;
}

//! Calls visitor(width of a piece, chunks of rows, whether heads are split, a State) with all as types.
template <class T, class Visitor>
[[nodiscard]] status dispatch_advance_wide(const advance_problem<T>& problem,
                                           Visitor&& visitor) noexcept
{
  const auto with_chunks = [&](auto width, auto split, auto state) {
    return problem.num_rows <= 8
               ? visitor(width, cuda::std::integral_constant<int, 1>{}, split, state)
               : visitor(width, cuda::std::integral_constant<int, 2>{}, split, state);
  };
  const std::int64_t width = problem.extent.head_width();
  if (!has_tensor_kernel(problem.extent)) {
    return dispatch_wide<T>(width, problem.states.type, with_chunks);
  }
  return dispatch_tensor<T>(width, problem.states.type, [&](auto narrow, auto state) {
    return with_chunks(narrow, cuda::std::false_type{}, state);
  });
}

//! Pieces of a head and blocks that share them, one of each where it has a kernel for tensor cores.
[[nodiscard]] inline head_split pieces_of(const shape& extent) noexcept
{
  const head_split split = split_of(extent);
  return split.is_split() ? split : head_split{1, 1};
}

//! Whether the device has room for a pass with any number of calls.
template <class T>
[[nodiscard]] bool has_room_for_wide(const advance_problem<T>& problem,
                                     const device_properties& properties) noexcept
{
  bool result = false;
  const status asked = dispatch_advance_wide(
      problem, [&](auto width, auto chunks, auto split, auto state) -> status {
        using advance = block::advance_wide<T, decltype(width)::value, decltype(chunks)::value,
                                            decltype(state), decltype(split)::value>;
        const head_split cut = pieces_of(problem.extent);
        const bool has_null =
            problem.start == pass_start::fresh && problem.sites.null_source != nullptr;
        result = has_room(properties, advance::shared_bytes(most_wide_calls(problem.extent),
                                                            has_null, 1, cut.pieces, cut.spread));
        return {};
      });
  return asked.ok() && result;
}

//! Depends on nothing that differs between a pass and its recomputation, and on the number of calls
//! not at all.
template <class T>
[[nodiscard]] bool is_wide(const advance_problem<T>& problem,
                           const device_properties& properties) noexcept
{
  return (has_wide_kernel(problem.extent, properties) ||
          (starts_from_null(problem, properties) &&
           problem.num_rows > tuning::sweep_policy::short_null_rows)) &&
         are_tensor_sites(problem.sites) && problem.num_rows >= 1 &&
         problem.num_rows <= max_wide_rows && is_aligned_16(problem.sites.null_source) &&
         are_vector_rows(rows_from(problem.rows, problem.first_row), problem.num_rows,
                         problem.extent) &&
         are_tensor_states(problem.states.mix, problem.states.slot_stride) &&
         has_room_for_wide(problem, properties);
}

template <class T>
[[nodiscard]] block::advance_wide_params<T> wide_params_of(
    const advance_problem<T>& problem) noexcept
{
  const shape& extent = problem.extent;
  block::advance_wide_params<T> pass;
  describe(problem, pass);
  pass.last_position = extent.num_positions;
  pass.pieces = pieces_of(extent).pieces;
  pass.spread = pieces_of(extent).spread;
  if (pass.finishes) {
    pass.stage = stage_of(problem);
    pass.lse = problem.outputs.lse;
  }
  return pass;
}

//! A pass of its own over rows that have no inverse rms yet: all other heads would have to be
//! waited for.
template <class T>
[[nodiscard]] status find_row_statistics(const advance_problem<T>& problem,
                                         const device_properties& properties,
                                         const context& where) noexcept
{
  const shape& extent = problem.extent;
  const int first = problem.first_row + problem.num_rows - problem.num_new_rows;
  const const_rows<T> rows = rows_from(problem.rows, first);
  block::row_statistics_params<T> pass;
  pass.num_positions = extent.num_positions;
  pass.width = extent.width;
  pass.inverse_width = 1.0f / static_cast<float>(extent.full_width());
  pass.eps = static_cast<float>(problem.eps);
  pass.rows = rows.row(0);
  pass.row_stride = stride_of(rows, problem.num_new_rows);
  pass.position_stride = rows.position_stride;
  pass.inverse_rms = problem.inverse_rms + first * extent.num_positions;
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>((extent.num_positions + 7) / 8),
                    static_cast<unsigned>(problem.num_new_rows));
  shape.block = 256;
  return launch(where, properties, shape, &kernel::row_statistics_kernel<T>, pass);
}

template <class T, int Width, int Chunks, bool Split, class State>
[[nodiscard]] status launch_advance_wide(const block::advance_wide_params<T>& pass,
                                         const device_properties& properties,
                                         const context& where) noexcept
{
  using advance = block::advance_wide<T, Width, Chunks, State, Split>;
  const auto bytes_of = [&pass](int teams) {
    return advance::shared_bytes(pass.num_calls, pass.null_source != nullptr, teams, pass.pieces,
                                 pass.spread);
  };
  const int teams = teams_of(pass.pieces, advance::max_threads, properties, bytes_of);
  const std::int64_t most =
      Split ? tuning::sweep_policy::num_clusters(properties.multiprocessors, pass.spread) /
                  pass.num_heads
            : advance::blocks_per_multiprocessor * properties.multiprocessors / pass.num_heads;
  const std::int64_t needed = (pass.last_position - pass.first_position + teams - 1) / teams;
  launch_shape shape;
  const std::int64_t blocks = needed < most ? needed : most;
  shape.grid = dim3(static_cast<unsigned>(pass.num_heads * pass.spread),
                    static_cast<unsigned>(blocks < 1 ? 1 : blocks));
  shape.block = static_cast<unsigned>(32 * pass.pieces * teams);
  shape.shared_memory = static_cast<std::size_t>(bytes_of(teams));
  shape.cluster = static_cast<unsigned>(pass.spread);
  return launch(where, properties, shape,
                &kernel::advance_wide_kernel<T, Width, Chunks, State, Split>, pass);
}

template <class T>
[[nodiscard]] status launch_advance_wide(const advance_problem<T>& problem,
                                         const block::advance_wide_params<T>& pass,
                                         const device_properties& properties,
                                         const context& where) noexcept
{
  return dispatch_advance_wide(problem, [&](auto width, auto chunks, auto split, auto state) {
    return launch_advance_wide<T, decltype(width)::value, decltype(chunks)::value,
                               decltype(split)::value, decltype(state)>(pass, properties, where);
  });
}

//! A pass whose first call ends in a kernel of its own, which has all heads of a position: as many
//! positions at a time as the workspace holds mixes of.
template <class T>
[[nodiscard]] status advance_and_end(const advance_problem<T>& problem,
                                     const device_properties& properties,
                                     const context& where) noexcept
{
  const shape& extent = problem.extent;
  const std::int64_t most = blocks_with_scratch<float>(
      where, unfinished_size(extent), (std::min)(extent.num_positions, unfinished_positions));
  if (most == 0) { return small_workspace(); }
  block::advance_wide_params<T> pass = wide_params_of(problem);
  pass.unfinished = static_cast<float*>(where.workspace);
  pass.unfinished_lse = pass.unfinished + most * extent.width;
  block::end_call_params<T> call;
  call.state = pass.unfinished;
  call.state_lse = pass.unfinished_lse;
  call.ending = ending_of(problem);
  for (std::int64_t first = 0; first < extent.num_positions; first += most) {
    pass.first_position = call.first_position = first;
    pass.last_position = (std::min)(first + most, extent.num_positions);
    call.num_positions = pass.last_position - first;
    const status launched = launch_advance_wide(problem, pass, properties, where);
    if (!launched.ok()) { return launched; }
    const status ended = launch_ending<float>(call, properties, where);
    if (!ended.ok()) { return ended; }
  }
  return {};
}

//! advance over wide heads, or from a null source; not_served() when the pass is one for another
//! kernel.
//! More calls than a kernel takes are several passes; a first call whose ending is stored in another
//! type or place takes the plain kernel alone, so that the others' bits do not depend on it.
template <class T>
[[nodiscard]] status advance_wide(advance_problem<T> problem, const device_properties& properties,
                                  const context& where) noexcept
{
  if (problem.num_rows == 0) { return finish_call(problem, properties, where); }
  if (!is_wide(problem, properties)) { return not_served(); }
  const bool ends_behind = has_own_pass(problem) && ends_in_registers(problem);
  if (has_own_pass(problem) && !ends_behind) {
    const status launched = advance_any(first_call_of(problem), properties, where);
    if (!launched.ok() || problem.num_calls == 1) { return launched; }
    problem = other_calls_of(problem);
  }
  if (problem.num_new_rows > 0) {
    const status launched = find_row_statistics(problem, properties, where);
    if (!launched.ok()) { return launched; }
  }
  const int most = most_wide_calls(problem.extent);
  for (int first = 0; first < problem.num_calls; first += most) {
    advance_problem<T> part = problem;
    part.first_call += first;
    part.states.first_slot += first;
    part.num_calls = problem.num_calls - first < most ? problem.num_calls - first : most;
    if (first > 0) { part.end = pass_end::keep_all; }
    const status launched =
        first == 0 && ends_behind
            ? advance_and_end(part, properties, where)
            : launch_advance_wide(part, wide_params_of(part), properties, where);
    if (!launched.ok()) { return launched; }
  }
  return {};
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
