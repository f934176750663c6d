// SPDX-License-Identifier: Apache-2.0
//! gather on the CPU: one backward pass of a sweep.
#pragma once

#include <mhar/cpu/context.hpp>
#include <mhar/cpu/detail/backward.hpp>
#include <mhar/cpu/detail/chunks.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

namespace detail {

//! Once per task: what does not change from position to position.
template <class T>
void prepare(const gather_problem<T>& problem, const chunk& positions,
             backward_tile<T, T>& tile) noexcept
{
  const std::int64_t width = problem.extent.width;
  tile.num_calls = problem.num_calls;
  tile.num_rows = problem.num_rows;
  tile.rounding = problem.sites.rounding;
  for (int c = 0; c < problem.num_calls; ++c) {
    const int call = problem.first_call + c;
    tile.sites[c] = folded_of(problem.sites, problem.extent, call);
    tile.queries[c] = tile.sites[c].query;
    tile.bias[c] = problem.sites.bias == nullptr
                       ? nullptr
                       : problem.sites.bias + call * problem.sites.bias_stride;
    tile.partials[c] = partials_of(problem.partials, width, positions.index, call);
    tile.query_sums[c] = tile.partials[c].query;
  }
  if (problem.partials.query == nullptr) { tile.query_sums = nullptr; }
  for (int m = 0; m < problem.num_rows; ++m) {
    tile.sums[m] = tile.sum_values + m * width;
    tile.bias_entries[m] = problem.bias_entry + problem.top_row - m;
  }
}

//! D of the calls that have none yet.
template <class T>
void write_dots(const gather_problem<T>& problem, std::int64_t position) noexcept
{
  const shape& extent = problem.extent;
  const std::int64_t width = extent.head_width();
  for (int c = problem.first_call; c < problem.first_call + problem.num_new_calls; ++c) {
    accumulate_t<T>* const sums =
        problem.dot + (c * extent.num_positions + position) * extent.num_heads;
    const T* const gradient = problem.call_gradients.at(c, position);
    const T* const mix = problem.mixes.at(c, position);
    for (int h = 0; h < extent.num_heads; ++h) {
      sums[h] = dot<accumulate_t<T>>(gradient + h * width, mix + h * width, width);
    }
  }
}

template <class T>
void gather_position(const gather_problem<T>& problem, std::int64_t position,
                     const backward_tile<T, T>& tile) noexcept
{
  using accumulate = accumulate_t<T>;
  const shape& extent = problem.extent;
  const std::int64_t positions = extent.num_positions;
  const bool kept = problem.start == pass_start::kept;
  write_dots(problem, position);
  for (int c = 0; c < problem.num_calls; ++c) {
    const int call = problem.first_call + c;
    tile.upstream[c] = problem.call_gradients.at(call, position);
    tile.lse[c] = problem.lse + (call * positions + position) * extent.num_heads;
    tile.dot_sums[c] = problem.dot + (call * positions + position) * extent.num_heads;
  }
  for (int m = 0; m < problem.num_rows; ++m) {
    const int row = problem.top_row - m;
    const std::int64_t slot = problem.states.first_slot + m;
    tile.rows[m] = problem.rows.at(row, position);
    tile.inverse_rms[m] = problem.inverse_rms[row * positions + position];
    tile.head_sums[m] = kept ? problem.states.head_sum[slot * positions + position] : accumulate{0};
    if (kept) {
      read(tile.sums[m], problem.states.gradient, problem.states.type,
           slot * problem.states.slot_stride + position * extent.width, extent.width);
    }
    else {
      std::fill(tile.sums[m], tile.sums[m] + extent.width, accumulate{0});
    }
  }

  backward_position(tile, extent);

  const bool finishes = problem.end == pass_end::finish_first;
  for (int m = finishes ? 1 : 0; m < problem.num_rows; ++m) {
    const std::int64_t slot = problem.states.first_slot + m;
    problem.states.head_sum[slot * positions + position] = tile.head_sums[m];
    write(problem.states.gradient, problem.states.type, update::store,
          slot * problem.states.slot_stride + position * extent.width, tile.sums[m], extent.width);
  }
  if (finishes && problem.row_gradient) {
    finish_row(tile.sums[0], tile.head_sums[0], tile.inverse_rms[0], tile.rows[0], extent);
    write(problem.row_gradient, position, tile.sums[0], extent.width);
  }
}

template <class T>
[[nodiscard]] std::size_t gather_workspace(const shape& extent, int members, int range) noexcept
{
  return chunk_workspace<backward_tile<T, T>>(extent, extent.width, members, range);
}

}  // namespace detail

//! Advances the gradients of a group of rows over a range of calls whose gradients are read once, adds every pair's part of dw
//! and dbias, and finishes the top row if asked to (eq. 12 to 17).
//!
//! Tensors      as documented at gather_problem
//! Numerics     weights are recomputed from lse; calls are added in order; parts of dw are added per chunk of positions, in order
//! Cost         reads each row and each call's gradient from memory once; about 8 flop per pair and element
//! Workspace    backend::workspace_bytes
//! Execution    one task per chunk of positions on context.run; returns when done
//! Thread-safe  yes, on different outputs, partial sums and workspaces
//! Errors       what validate() says; code::small_workspace; code::incomplete; code::bad_shape for another number of chunks
//!              than backend::num_chunks
//! Empty        P == 0 is success; partial sums stay as they are
template <class T>
[[nodiscard]] status gather(const gather_problem<T>& problem, const context& context) noexcept
{
  if (const status valid = validate(problem, context.scratch()); !valid.ok()) { return valid; }
  const shape& extent = problem.extent;
  if (extent.num_positions == 0) { return {}; }
  if (const status chunks = detail::matching_chunks(problem.partials, extent); !chunks.ok()) {
    return chunks;
  }
  const std::size_t needed =
      detail::gather_workspace<T>(extent, problem.num_rows, problem.num_calls);
  if (const status enough = detail::enough_workspace(context, needed); !enough.ok()) {
    return enough;
  }
  return detail::for_each_chunk<detail::backward_tile<T, T>>(
      extent, context,
      [&](const detail::chunk& positions, detail::backward_tile<T, T>&& tile) {
        detail::prepare(problem, positions, tile);
        for (std::int64_t p = positions.begin; p < positions.end; ++p) {
          detail::gather_position(problem, p, tile);
        }
      },
      extent.width, problem.num_rows, problem.num_calls);
}

}  // namespace cpu
MHAR_NAMESPACE_END
