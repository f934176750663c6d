// SPDX-License-Identifier: Apache-2.0
//! A single call's backward: do, D and the null source's part as in a sweep, then a backward tile with one call that finishes
//! every row. What the forward did not save is recomputed by a forward tile.
#pragma once

#include <mhar/cpu/detail/backward.hpp>
#include <mhar/cpu/detail/row_gradients.hpp>
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
        tile{memory, 0, num_rows, 1},  // its sums are not used
        null{memory, extent.width, extent.num_heads},
        gradient{memory.take<accumulate>(extent.width)},
        combined{memory.take<accumulate>(extent.width)},
        dot_sums{memory.take<accumulate>(extent.num_heads)},
        scores{memory.take<accumulate>(std::int64_t{extent.num_heads} * num_rows)},
        products{memory.take<accumulate>(std::int64_t{extent.num_heads} * num_rows)},
        self{memory.take<accumulate>(num_rows)},
        out{memory.take<void*>(num_rows)},
        zeros{memory, extent.width}
  {
  }

  forward_scratch<T> forward;
  backward_tile<T, accumulate> tile;
  null_gradient<accumulate> null;
  accumulate* gradient;  // [d] dy, then do
  accumulate* combined;  // [d] o
  accumulate* dot_sums;  // [H] D
  accumulate* scores;    // [H][R] as the tile's, of all heads
  accumulate* products;  // [H][R]
  accumulate* self;      // [R] -(r^2/d) c
  void** out;            // [R] where the rows' gradients go
  zero_vectors<T> zeros;
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
    for (std::int64_t p = positions.begin; p < positions.end; ++p) {
      position(p, p + 1 < positions.end ? problem_.rows.position_stride : 0, scratch, sums);
    }
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
    for (int m = 0; m < problem_.num_rows; ++m) { tile.bias_entries[m] = m; }
  }

  void position(std::int64_t p, std::int64_t ahead, call_backward_scratch<T>& scratch,
                const call_partials<accumulate>& sums) const noexcept
  {
    const shape& extent = problem_.extent;
    const std::int64_t width = extent.width;
    backward_tile<T, accumulate>& tile = scratch.tile;
    accumulate* const mix = scratch.forward.sums[0];
    if (recompute_) {
      forward_position(pass_, call_extras<T>{single_.unfolded}, p, 0, scratch.forward);
    }
    else {
      find_rows(pass_, p, scratch.forward.rows);
      find_inverse_rms(pass_, p, static_cast<const accumulate*>(nullptr), scratch.forward);
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
    rows(p, ahead, scratch);
  }

  //! The rows, twice: first the factors of all heads, because c is a sum over heads, then the gradients.
  void rows(std::int64_t p, std::int64_t ahead, call_backward_scratch<T>& scratch) const noexcept
  {
    const shape& extent = problem_.extent;
    const std::int64_t width = extent.head_width();
    backward_tile<T, accumulate>& tile = scratch.tile;
    const int num_rows = tile.num_rows;
    std::copy(scratch.forward.rows, scratch.forward.rows + num_rows, tile.rows);
    std::copy(scratch.forward.inverse_rms, scratch.forward.inverse_rms + num_rows,
              tile.inverse_rms);
    std::fill(tile.head_sums, tile.head_sums + num_rows, accumulate{0});
    // w and do meet a row at once, and a few rows are read over the whole width before the next ones.
    const accumulate* const both[2] = {site_.query, scratch.gradient};
    for (int first = 0; first < num_rows; first += rows_at_once) {
      const row_range<T> some{tile.rows + first, (std::min)(rows_at_once, num_rows - first)};
      for (int h = 0; h < extent.num_heads; ++h) {
        dots(both, 2, some, columns{h * width, width},
             scratch.scores + std::int64_t{h} * num_rows + first,
             scratch.products - scratch.scores);
      }
    }
    const std::int64_t pairs = std::int64_t{extent.num_heads} * num_rows;
    const bool finite = all_finite(scratch.scores, pairs) && all_finite(scratch.products, pairs);
    for (int h = 0; h < extent.num_heads; ++h) {
      tile.scores = scratch.scores + std::int64_t{h} * num_rows;
      tile.products = scratch.products + std::int64_t{h} * num_rows;
      const columns head{h * width, width};
      rounded_products(tile, head);
      pair_factors(tile, h);
      if (tile.rounding != key_rounding::none) { add_rounded_keys(tile, head, finite); }
    }
    const auto full_width = static_cast<accumulate>(extent.full_width());
    for (int m = 0; m < num_rows; ++m) {
      const accumulate inverse = tile.inverse_rms[m];
      scratch.self[m] = tile.head_sums[m] == 0
                            ? accumulate{0}
                            : -inverse * (inverse * tile.head_sums[m]) / full_width;
    }
    write_rows(p, ahead, scratch, finite);
  }

  void write_rows(std::int64_t p, std::int64_t ahead, const call_backward_scratch<T>& scratch,
                  bool finite) const noexcept
  {
    const shape& extent = problem_.extent;
    const backward_tile<T, accumulate>& tile = scratch.tile;
    const bool rounded = tile.rounding != key_rounding::none;
    const call_vectors<accumulate> vectors{
        scratch.gradient, site_.query,
        tile.query_sums == nullptr || rounded ? nullptr : tile.query_sums[0]};
    const gradient_rows& wanted = problem_.row_gradients;
    for (int m = 0; m < tile.num_rows; ++m) {
      const matrix out = wanted ? wanted.row(m) : matrix{};
      scratch.out[m] =
          out ? static_cast<char*>(out.data) + p * out.position_stride * size_of(out.type)
              : nullptr;
    }
    const streamed_range<T> rows{tile.rows, tile.num_rows, ahead};
    const gradient_targets targets{scratch.out, ahead == 0 ? 0 : wanted.position_stride};
    const row_factors<accumulate> factors{scratch.products, scratch.scores, scratch.self};
    with_type(wanted.type, [&](auto tag) {
      using out_type = typename decltype(tag)::type;
      with_mode(wanted.mode, [&](auto mode) {
        constexpr update how = decltype(mode)::value;
        if (finite) { row_gradients<out_type, how>(rows, targets, factors, vectors, extent); }
        else {
          row_gradients_with_weight<out_type, how>(rows, targets, factors, vectors, extent,
                                                   scratch.zeros);
        }
      });
    });
  }

  const route_gradient_problem<T>& problem_;
  single_site<T> single_;
  folded_site<accumulate> site_;
  advance_problem<T> pass_;
  bool recompute_ = false;
};

}  // namespace cpu::detail
MHAR_NAMESPACE_END
