// SPDX-License-Identifier: Apache-2.0
//! Launches a backward pass on tensor cores.
#pragma once

#include <mhar/device/detail/gather_groups.cuh>
#include <mhar/device/detail/sweep_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

template <class T>
[[nodiscard]] bool serves(const gather_problem<T>& problem,
                          const device_properties& properties) noexcept
{
  const std::int64_t positions = problem.extent.num_positions;
  const matrix& gradient = problem.row_gradient;
  const bool plain_gradient =
      !gradient || (is_tensor_matrix<T>(gradient) && gradient.mode == update::store);
  return properties.capability >= 90 && has_tensor_kernel(problem.extent) &&
         are_tensor_sites(problem.sites) && problem.partials.bias == nullptr &&
         problem.num_calls >= 1 && problem.num_new_calls <= 1 &&
         are_tensor_rows(rows_from(problem.rows, problem.top_row - problem.num_rows + 1),
                         problem.num_rows, positions) &&
         are_tensor_rows(rows_from(problem.call_gradients, problem.first_call), problem.num_calls,
                         positions) &&
         are_tensor_rows(rows_from(problem.mixes, problem.first_call), problem.num_new_calls,
                         positions) &&
         is_aligned_16(problem.sites.query) && is_aligned_16(problem.partials.query) &&
         are_tensor_states(problem.states.gradient, problem.states.slot_stride) &&
         (problem.end == pass_end::keep_all || plain_gradient);
}

template <class T>
[[nodiscard]] block::gather_tensor_params<T> params_of(const gather_problem<T>& problem) noexcept
{
  block::gather_tensor_params<T> pass;
  describe(problem, pass);
  pass.query = problem.sites.query + problem.first_call * problem.extent.width;
  if (problem.num_new_calls == 1) {
    pass.mix = problem.mixes.row(problem.first_call);
    pass.mix_position_stride = problem.mixes.position_stride;
  }
  pass.row_gradient = static_cast<T*>(problem.row_gradient.data);
  pass.gradient_stride = problem.row_gradient.position_stride;
  pass.reads_early = problem.num_unread_calls == 0 || problem.num_unread_calls == 1;
  pass.old_states = problem.has_old_states;
  pass.first_unread = problem.num_unread_calls > 0 && problem.num_new_calls > 0;
  return pass;
}

//! As few blocks as walk over `tiles` in as many turns as `most` would: each reads and writes its
//! chunk of the partial sums once.
[[nodiscard]] inline int even_blocks(std::int64_t tiles, int most) noexcept
{
  const std::int64_t turns = (tiles + most - 1) / most;
  return static_cast<int>((tiles + turns - 1) / turns);
}

//! Few calls: blocks walk over tiles of eight positions, and each has a chunk of the partial sums.
template <class T, int HeadWidth, int Calls, class State>
[[nodiscard]] status launch_gather_calls(const block::gather_tensor_params<T>& pass, int chunks,
                                         const device_properties& properties,
                                         const context& where) noexcept
{
  // Two blocks of one call share a multiprocessor with 128 registers per thread; where all blocks fit
  // side by side, that lets the next pass's begin. Up to four heads fit twice with all registers.
  constexpr bool fits_twice = Calls == 1 && (HeadWidth <= 128 || sizeof(State) == 2);
  const bool fits_anyway = pass.num_heads <= 4;
  const std::int64_t tiles = (pass.num_positions + 7) / 8;
  int blocks = chunks;
  if (!fits_twice && !fits_anyway) {
    blocks = (std::min)(blocks, even_blocks(tiles, properties.multiprocessors));
  }
  launch_shape shape;
  shape.grid = static_cast<unsigned>(blocks);
  shape.block = static_cast<unsigned>(32 * pass.num_heads);
  const auto go = [&](auto at_once, auto ahead) {
    constexpr bool runs_ahead = decltype(ahead)::value;
    using gather = block::gather_calls<T, HeadWidth, Calls, State, runs_ahead>;
    shape.shared_memory =
        static_cast<std::size_t>(gather::shared_bytes(pass.num_heads, pass.num_rows));
    constexpr int most = decltype(at_once)::value;
    return launch(where, properties, shape,
                  &kernel::gather_calls_kernel<T, HeadWidth, Calls, State, most, runs_ahead>, pass);
  };
  using one = std::integral_constant<int, 1>;
  if constexpr (fits_twice) {
    if (!fits_anyway) { return go(std::integral_constant<int, 2>{}, std::false_type{}); }
  }
  if constexpr (Calls >= 2 && Calls <= 4 && sizeof(State) == 2) {
    using ahead = block::gather_calls<T, HeadWidth, Calls, State, true>;
    if (tiles > blocks &&
        ahead::shared_bytes(pass.num_heads, pass.num_rows) <= properties.shared_memory_per_block) {
      return go(one{}, std::true_type{});
    }
  }
  return go(one{}, std::false_type{});
}

//! As many positions under way as shared memory has room for.
template <class T, int HeadWidth, int Chunks, int MemberTiles, class State, bool Segmented>
[[nodiscard]] status launch_gather_tiles(block::gather_tensor_params<T> pass,
                                         const device_properties& properties,
                                         const context& where) noexcept
{
  const std::int64_t positions =
      gathered_positions(pass.num_positions, pass.num_heads, Segmented, properties);
  // Segmented ones have a number each in shared memory: of many there is no room for all.
  constexpr std::int64_t many = std::int64_t{1} << 20;
  if (Segmented && positions > many) { return not_served(); }
  pass.positions_per_block = static_cast<int>(positions);

  // As if there were as many rows as a kernel takes: the choice must not depend on their number.
  constexpr int most = tuning::sweep_policy::max_gather_rows;
  using largest = block::gather_tiles_layout<T, HeadWidth, most / 8, State>;
  using layout = block::gather_tiles_layout<T, HeadWidth, MemberTiles, State>;
  const int top_sums = Segmented ? pass.positions_per_block : 0;
  const auto bytes_of = [&](int slots) {
    return layout{pass.calls_per_segment, pass.num_rows, pass.num_heads, slots, top_sums}.total;
  };
  // Warps that copy in turn need a slot each: with fewer, one would miss a phase of its barriers.
  constexpr int least =
      block::gather_tiles<T, HeadWidth, Chunks, MemberTiles, State, Segmented>::copy_warps;
  if (largest{pass.calls_per_segment, most, pass.num_heads, least, top_sums}.total >
      properties.shared_memory_per_block) {
    return not_served();
  }
  pass.num_slots = slots_with_room(layout::max_slots, properties, bytes_of);
  // Seven, of which two at a time are given back, are slower than six (measured).
  if (pass.num_slots == 7) { pass.num_slots = 6; }
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(pass.num_heads),
                    static_cast<unsigned>((pass.num_positions + pass.positions_per_block - 1) /
                                          pass.positions_per_block));
  shape.block =
      block::gather_tiles<T, HeadWidth, Chunks, MemberTiles, State, Segmented>::num_threads;
  shape.shared_memory = static_cast<std::size_t>(bytes_of(pass.num_slots));
  shape.cluster = static_cast<unsigned>(pass.num_heads);
  return launch(where, properties, shape,
                &kernel::gather_tiles_kernel<T, HeadWidth, Chunks, MemberTiles, State, Segmented>,
                pass);
}

//! Many calls, in chunks of 16. What registers have no dw for comes in segments of equal length;
//! float states, which would be rounded between two segments, in one pass as long as there is room.
template <class T, int HeadWidth, int MemberTiles, class State>
[[nodiscard]] status launch_gather_chunks(block::gather_tensor_params<T> pass,
                                          const device_properties& properties,
                                          const context& where) noexcept
{
  if constexpr (cuda::std::is_same_v<T, bfloat16> && cuda::std::is_same_v<State, bfloat16>) {
    const status launched = gather_by_groups<HeadWidth>(pass, properties, where);
    if (launched.code != code::unsupported) { return launched; }
  }
  const int chunks = (pass.num_calls + 15) / 16;
  pass.calls_per_segment = pass.num_calls;
  if constexpr (sizeof(State) == 2) {
    constexpr int most = tuning::sweep_policy::segment_chunks;
    if (chunks > most) {
      pass.calls_per_segment = calls_per_segment(chunks);
      return launch_gather_tiles<T, HeadWidth, most, MemberTiles, State, true>(pass, properties,
                                                                               where);
    }
    return chunks == 1 ? launch_gather_tiles<T, HeadWidth, 1, MemberTiles, State, false>(
                             pass, properties, where)
                       : launch_gather_tiles<T, HeadWidth, most, MemberTiles, State, false>(
                             pass, properties, where);
  }
  else {
    return dispatch_at_least<1, 4, 8, 12>(chunks, not_served(), [&](auto count) {
      return launch_gather_tiles<T, HeadWidth, decltype(count)::value, MemberTiles, State, false>(
          pass, properties, where);
    });
  }
}

//! Whether a warp serves eight positions of few calls: of more than four shared memory must hold
//! gradients, beside as many rows as a launch takes, whatever this pass has.
template <class T, int HeadWidth, class State>
[[nodiscard]] bool is_short(int num_calls, int num_heads,
                            const device_properties& properties) noexcept
{
  constexpr int range = tuning::sweep_policy::short_range;
  constexpr int most = tuning::sweep_policy::max_gather_rows;
  using longest = block::gather_calls<T, HeadWidth, range, State, false>;
  return num_calls <= 4 || (num_calls <= range && longest::shared_bytes(num_heads, most) <=
                                                      properties.shared_memory_per_block);
}

//! The kernel for the number of calls; the number of rows must not change a row's bits.
template <class T, int HeadWidth, class State>
[[nodiscard]] status launch_gather(const block::gather_tensor_params<T>& pass, int chunks,
                                   const device_properties& properties,
                                   const context& where) noexcept
{
  if (is_short<T, HeadWidth, State>(pass.num_calls, pass.num_heads, properties)) {
    return dispatch_at_least<1, 2, 3, 4, 5, 6>(pass.num_calls, not_served(), [&](auto calls) {
      return launch_gather_calls<T, HeadWidth, decltype(calls)::value, State>(pass, chunks,
                                                                              properties, where);
    });
  }
  return pass.num_rows <= 8 ? launch_gather_chunks<T, HeadWidth, 1, State>(pass, properties, where)
                            : launch_gather_chunks<T, HeadWidth, 2, State>(pass, properties, where);
}

//! gather on tensor cores; not_served() when the pass is one for the plain kernel. More rows than a
//! kernel takes are several passes over the same calls.
template <class T>
[[nodiscard]] status gather_tensor(const gather_problem<T>& problem,
                                   const device_properties& properties,
                                   const context& where) noexcept
{
  if (!serves(problem, properties)) { return not_served(); }
  const int chunks = chunks_of(problem.extent);
  return gather_in_parts(
      problem, tuning::sweep_policy::max_gather_rows, [&](const gather_problem<T>& part) {
        return dispatch_tensor<T>(
            part.extent.head_width(), part.states.type, [&](auto width, auto state) {
              return launch_gather<T, decltype(width)::value, decltype(state)>(
                  params_of(part), chunks, properties, where);
            });
      });
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
