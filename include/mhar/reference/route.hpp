// SPDX-License-Identifier: Apache-2.0
//! The reference backend: one routing call, its gradients, and the merge of partial results, in
//! double (docs/operator.md).
//!
//! It takes the same problems as the other backends and writes into their outputs, so that a test
//! can run it in their place; with outputs of element::float64 nothing is rounded. Written to be
//! read, not to be fast: the judge of every other backend.
#pragma once

#include <mhar/reference/backward.hpp>
#include <mhar/reference/forward.hpp>
#include <mhar/types/update.hpp>
#include <mhar/types/validate.hpp>

#include <vector>

MHAR_NAMESPACE_BEGIN
namespace reference {

namespace detail {

//! `change(sources, p)` may change the rows that are read at a position.
template <class T, class Change>
void route_changed(const route_problem<T>& problem, const Change& change)
{
  const shape& extent = problem.extent;
  const site s = read_site(extent, problem.num_rows, problem.site, problem.stage);
  const route_outputs<T>& out = problem.outputs;
  constexpr element statistics = element_of<accumulate_t<T>>::value;

  for (std::int64_t p = 0; p < extent.num_positions; ++p) {
    table sources = read_sources(s, problem.rows, p);
    change(sources, p);
    const vector partial =
        problem.stage.partial ? read(problem.stage.partial, p, s.width) : vector{};
    const routed f = forward<T>(s, sources, partial);

    write(out.y, p, f.output);
    write(out.combined, p, f.combined);
    write(out.mix, p, f.mix);
    write(out.lse, statistics, p * s.num_heads, update::store, f.lse);
    for (int h = 0; h < s.num_heads; ++h) {
      write(out.weights, statistics, (p * s.num_heads + h) * s.num_sources, update::store,
            f.weights.col(h).transpose());
    }
    for (int n = 0; n < problem.num_rows; ++n) {
      write(out.inverse_rms, statistics, n * extent.num_positions + p, update::store,
            f.inverse_rms.segment(n + s.num_null, 1));
    }
  }
}

}  // namespace detail

//! Forward of one call (eq. 1 to 8). Throws invalid_argument.
template <class T>
void route(const route_problem<T>& problem)
{
  check(validate(problem));
  detail::route_changed(problem, [](table&, std::int64_t) {});
}

//! The same with `prefix += delta` in front of it (update_problem). Throws invalid_argument.
template <class T>
void route(const update_problem<T>& problem)
{
  using accumulate = accumulate_t<T>;
  check(validate(problem));
  const std::int64_t width = problem.call.extent.width;
  const int source = problem.row + (problem.call.site.null_source ? 1 : 0);
  detail::route_changed(problem.call, [&](table& sources, std::int64_t p) {
    // In the accumulation type, then rounded: the one sum whose bits are part of what is asked for.
    vector sum(width);
    for (std::int64_t i = 0; i < width; ++i) {
      const auto delta = load<accumulate>(problem.delta.data, problem.delta.type,
                                          p * problem.delta.position_stride + i);
      const auto row = static_cast<accumulate>(sources(source, i));
      sum(i) = widen<double>(round_to<T>(row + delta));
    }
    sources.row(source) = sum;
    write(problem.sum, p, sum);
    write(problem.copy, p, sum);
  });
}

namespace detail {

template <class T>
saved_values read_saved(const route_gradient_problem<T>& problem, std::int64_t p)
{
  const shape& extent = problem.extent;
  constexpr element statistics = element_of<accumulate_t<T>>::value;
  saved_values saved;
  if (problem.inverse_rms != nullptr) {
    saved.inverse_rms = vector(problem.num_rows);
    for (int n = 0; n < problem.num_rows; ++n) {
      (*saved.inverse_rms)(n) =
          read(problem.inverse_rms, statistics, n * extent.num_positions + p, 1)(0);
    }
  }
  if (problem.lse != nullptr) {
    saved.lse = read(problem.lse, statistics, p * extent.num_heads, extent.num_heads);
  }
  if (problem.mix) { saved.mix = read(problem.mix, p, extent.width); }
  if (problem.combined) { saved.combined = read(problem.combined, p, extent.width); }
  return saved;
}

}  // namespace detail

//! Backward of one call (eq. 9 to 17). Saved results that are given are used as they are, rounded
//! or not. Throws invalid_argument.
template <class T>
void route_gradient(const route_gradient_problem<T>& problem)
{
  check(validate(problem));
  const shape& extent = problem.extent;
  const site s = read_site(extent, problem.num_rows, problem.site, problem.stage);

  vector folded = vector::Zero(s.width);
  vector bias = vector::Zero(s.num_sources);
  vector null_source = vector::Zero(s.width);
  vector gate = vector::Zero(1);
  vector output_weight = vector::Zero(s.width);
  for (std::int64_t p = 0; p < extent.num_positions; ++p) {
    const table sources = read_sources(s, problem.rows, p);
    const vector partial =
        problem.stage.partial ? read(problem.stage.partial, p, s.width) : vector{};
    const routed f = forward<T>(s, sources, partial, detail::read_saved(problem, p));

    const vector upstream = read(problem.output_gradient, p, s.width);
    const vector combined_upstream =
        problem.combined_gradient ? read(problem.combined_gradient, p, s.width) : vector{};
    const position_gradients g = backward(s, sources, f, upstream, combined_upstream);

    write(problem.partial_gradient, p, g.combined);
    for (int n = 0; problem.row_gradients && n < problem.num_rows; ++n) {
      write(problem.row_gradients.row(n), p, g.sources.row(n + s.num_null));
    }
    folded += g.folded;
    bias += g.bias;
    if (s.num_null == 1) { null_source += g.sources.row(0); }
    gate += g.gate;
    output_weight += g.output_weight;
  }

  write(problem.gradients.query, folded * s.norm_weight);
  write(problem.gradients.norm_weight, folded * s.query);
  write(problem.gradients.bias, bias);
  write(problem.gradients.null_source, null_source);
  write(problem.gradients.gate, gate);
  write(problem.gradients.output_norm_weight, output_weight);
}

//! Merge of partial results over disjoint sources (eq. 18). Throws invalid_argument.
template <class T>
void merge(const merge_problem<T>& problem)
{
  check(validate(problem));
  const shape& extent = problem.extent;
  const std::int64_t head_width = extent.head_width();
  constexpr element statistics = element_of<accumulate_t<T>>::value;

  for (std::int64_t p = 0; p < extent.num_positions; ++p) {
    table part_lse(problem.num_parts, extent.num_heads);
    for (int i = 0; i < problem.num_parts; ++i) {
      part_lse.row(i) = read(problem.part_lse, statistics,
                             i * problem.part_lse_stride + p * extent.num_heads, extent.num_heads);
    }
    vector lse(extent.num_heads);
    vector mix = vector::Zero(extent.width);
    for (int h = 0; h < extent.num_heads; ++h) {
      lse(h) = log_sum_exp(part_lse.col(h));
      for (int i = 0; i < problem.num_parts; ++i) {
        // A part without weight is not read into the sum: its mix may hold anything.
        if (part_lse(i, h) == -std::numeric_limits<double>::infinity()) { continue; }
        const T* const part = problem.parts.at(i, p);
        mix.segment(h * head_width, head_width) +=
            std::exp(part_lse(i, h) - lse(h)) *
            read(part, element_of<T>::value, h * head_width, head_width);
      }
    }
    write(problem.mix, p, mix);
    write(problem.lse, statistics, p * extent.num_heads, update::store, lse);
  }
}

}  // namespace reference
MHAR_NAMESPACE_END
