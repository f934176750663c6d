// SPDX-License-Identifier: Apache-2.0
//! A single call's backward: do, D and the null source's part as in a sweep, then a backward tile with one call that finishes
//! every row. What the forward did not save is recomputed by a forward tile.
#pragma once

#include <mhar/cpu/detail/backward.hpp>
#include <mhar/cpu/detail/single_call.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Arrays of one task.
template <class T>
struct call_backward_scratch
{
  using accumulate = accumulate_t<T>;

  call_backward_scratch(arena& memory, const shape& extent, int num_rows)
      : forward{memory, extent.width, extent.num_heads, 1, num_rows},
        tile{memory, extent.width, num_rows, 1},
        null{memory, extent.width, extent.num_heads},
        gradient{memory.take<accumulate>(extent.width)},
        combined{memory.take<accumulate>(extent.width)},
        dot_sums{memory.take<accumulate>(extent.num_heads)}
  {
  }

  forward_scratch<T> forward;
  backward_tile<T, accumulate> tile;
  null_gradient<accumulate> null;
  accumulate* gradient;  // [d] dy, then do
  accumulate* combined;  // [d] o
  accumulate* dot_sums;  // [H] D
};

template <class T>
class call_backward
{
public:
  using accumulate = accumulate_t<T>;

  call_backward(arena& memory, const route_gradient_problem<T>& problem)
      : problem_{problem}, single_{memory, problem.extent, problem.num_rows, problem.site}
  {
    const std::int64_t width = problem.extent.width;
    const site_gradients& wanted = problem.gradients;
    partials.num_chunks = num_chunks(problem.extent);
    partials.num_calls = 1;
    partials.bias_stride = problem.num_rows;
    const auto take = [&](bool any, std::int64_t size) {
      return any ? memory.take<accumulate>(partials.num_chunks * size) : nullptr;
    };
    partials.query = take(wanted.query || wanted.norm_weight, width);
    partials.bias = take(static_cast<bool>(wanted.bias), std::int64_t{problem.num_rows} + 1);
    partials.null_source = take(static_cast<bool>(wanted.null_source), width);
    partials.gate = take(static_cast<bool>(wanted.gate), 1);
    partials.output_norm = take(static_cast<bool>(wanted.output_norm_weight), width);
  }

  //! Once, before any chunk.
  void fold() noexcept
  {
    const int num_sources = problem_.num_rows + (problem_.site.null_source ? 1 : 0);
    fold_site<T>(problem_.extent, problem_.site, problem_.stage.gate, num_sources,
                 problem_.num_rows, single_.folded, 0, single_.unfolded);
    site_ = folded_of(single_.folded, problem_.extent, 0);
    const bool normed = problem_.stage.norm == output_norm::rms;
    recompute_ = problem_.lse == nullptr || !problem_.mix || (normed && !problem_.combined);
    pass_ = forward_pass(problem_, single_);
    if (problem_.inverse_rms != nullptr) {
      pass_.num_new_rows = 0;  // so that it is only read
      pass_.inverse_rms = const_cast<accumulate*>(problem_.inverse_rms);
    }
  }

  void run(const chunk& positions, call_backward_scratch<T>& scratch) const noexcept
  {
    const call_partials<accumulate> sums =
        partials_of(partials, problem_.extent.width, positions.index, 0);
    clear(sums);
    prepare(pass_, call_extras<T>{single_.unfolded}, scratch.forward);
    detail::prepare<T>(scratch.null, site_, problem_.extent,
                       static_cast<accumulate>(problem_.site.eps), problem_.site.rounding);
    prepare_tile(scratch, sums);
    for (std::int64_t p = positions.begin; p < positions.end; ++p) { position(p, scratch, sums); }
    if (scratch.null.active) { finish_chunk(scratch.null, site_, problem_.extent, sums); }
  }

  gradient_partials<accumulate> partials;

private:
  void clear(const call_partials<accumulate>& sums) const noexcept
  {
    const auto zero = [](accumulate* start, std::int64_t size) {
      if (start != nullptr) { std::fill(start, start + size, accumulate{0}); }
    };
    zero(sums.query, problem_.extent.width);
    zero(sums.bias, partials.bias_stride + 1);
    zero(sums.null_source, problem_.extent.width);
    zero(sums.gate, 1);
    zero(sums.output_norm, problem_.extent.width);
  }

  void prepare_tile(call_backward_scratch<T>& scratch,
                    const call_partials<accumulate>& sums) const noexcept
  {
    backward_tile<T, accumulate>& tile = scratch.tile;
    tile.num_calls = 1;
    tile.num_rows = problem_.num_rows;
    tile.rounding = problem_.site.rounding;
    tile.unfolded = single_.unfolded;
    tile.sites[0] = site_;
    tile.queries[0] = site_.query;
    tile.upstream[0] = scratch.gradient;
    tile.dot_sums[0] = scratch.dot_sums;
    tile.bias[0] = single_.folded.bias;
    tile.partials[0] = sums;
    tile.query_sums[0] = sums.query;
    if (sums.query == nullptr) { tile.query_sums = nullptr; }
    for (int m = 0; m < problem_.num_rows; ++m) {
      tile.sums[m] = tile.sum_values + m * problem_.extent.width;
      tile.bias_entries[m] = m;
    }
    if (!problem_.row_gradients) { tile.sums = nullptr; }
  }

  void position(std::int64_t p, call_backward_scratch<T>& scratch,
                const call_partials<accumulate>& sums) const noexcept
  {
    const shape& extent = problem_.extent;
    const std::int64_t width = extent.width;
    backward_tile<T, accumulate>& tile = scratch.tile;
    accumulate* const mix = scratch.forward.sums[0];
    if (recompute_) {
      forward_position(pass_, call_extras<T>{single_.unfolded}, p, scratch.forward);
    }
    else {
      gather_rows(pass_, p, scratch.forward);
    }
    if (problem_.mix) { read(mix, problem_.mix, p, width); }
    tile.lse[0] =
        problem_.lse != nullptr ? problem_.lse + p * extent.num_heads : scratch.forward.lse;

    if (problem_.stage.norm == output_norm::rms) {
      if (problem_.combined) { read(scratch.combined, problem_.combined, p, width); }
      else {
        std::copy(mix, mix + width, scratch.combined);
        combine_partial(scratch.forward.finish, p, scratch.combined, width);
      }
    }
    read(scratch.gradient, problem_.output_gradient, p, width);
    output_norm_gradient(scratch.forward.finish, problem_.combined_gradient, p, scratch.gradient,
                         scratch.combined, sums.output_norm, width);
    if (problem_.partial_gradient) { write(problem_.partial_gradient, p, scratch.gradient, width); }

    const std::int64_t head_width = extent.head_width();
    for (int h = 0; h < extent.num_heads; ++h) {
      const std::int64_t first = h * head_width;
      scratch.dot_sums[h] = dot<accumulate>(scratch.gradient + first, mix + first, head_width);
      if (sums.gate != nullptr) { *sums.gate += scratch.dot_sums[h]; }
    }
    if (scratch.null.active) {
      add_position(scratch.null, site_, extent, scratch.gradient, tile.lse[0], scratch.dot_sums,
                   sums);
    }
    rows(p, scratch);
  }

  void rows(std::int64_t p, call_backward_scratch<T>& scratch) const noexcept
  {
    const shape& extent = problem_.extent;
    backward_tile<T, accumulate>& tile = scratch.tile;
    for (int m = 0; m < problem_.num_rows; ++m) {
      tile.rows[m] = scratch.forward.rows[m];
      tile.inverse_rms[m] = scratch.forward.inverse_rms[m];
      tile.head_sums[m] = 0;
      if (tile.sums != nullptr) {
        std::fill(tile.sums[m], tile.sums[m] + extent.width, accumulate{0});
      }
    }
    backward_position(tile, extent);
    if (tile.sums == nullptr) { return; }
    for (int m = 0; m < problem_.num_rows; ++m) {
      const matrix out = problem_.row_gradients.row(m);
      if (!out) { continue; }
      finish_row(tile.sums[m], tile.head_sums[m], tile.inverse_rms[m], tile.rows[m], extent);
      write(out, p, tile.sums[m], extent.width);
    }
  }

  const route_gradient_problem<T>& problem_;
  single_site<T> single_;
  folded_site<accumulate> site_;
  advance_problem<T> pass_;
  bool recompute_ = false;
};

}  // namespace cpu::detail
MHAR_NAMESPACE_END
