// SPDX-License-Identifier: Apache-2.0
//! The backward tile: at one position, the gradients of a group of rows are advanced over a range of calls. A single call's
//! backward is this with one call, and every row finished.
#pragma once

#include <mhar/cpu/detail/call_gradient.hpp>
#include <mhar/cpu/detail/combine.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Everything a backward tile meets at one position: R rows (the members) and C calls. Upstream is the type do is held in.
template <class T, class Upstream>
struct backward_tile
{
  using accumulate = accumulate_t<T>;

  backward_tile(arena& memory, std::int64_t width, int members, int range)
      : queries{memory.take<const accumulate*>(range)},
        upstream{memory.take<const Upstream*>(range)},
        lse{memory.take<const accumulate*>(range)},
        dot_sums{memory.take<const accumulate*>(range)},
        sites{memory.take<folded_site<accumulate>>(range)},
        bias{memory.take<const accumulate*>(range)},
        partials{memory.take<call_partials<accumulate>>(range)},
        query_sums{memory.take<accumulate*>(range)},
        rows{memory.take<const T*>(members)},
        inverse_rms{memory.take<accumulate>(members)},
        head_sums{memory.take<accumulate>(members)},
        bias_entries{memory.take<int>(members)},
        sums{memory.take<accumulate*>(members)},
        sum_values{memory.take<accumulate>(members * width)},
        scores{memory.take<accumulate>(std::int64_t{members} * range)},
        logits{memory.take<accumulate>(std::int64_t{members} * range)},
        products{memory.take<accumulate>(std::int64_t{members} * range)}
  {
  }

  // Of the calls, [C]:
  const accumulate** queries;   // w
  const Upstream** upstream;    // do
  const accumulate** lse;       // [H]
  const accumulate** dot_sums;  // [H] D
  folded_site<accumulate>* sites;
  const accumulate** bias;  // null when there is none
  call_partials<accumulate>* partials;
  accumulate** query_sums;  // the partials' `query`; null when not wanted
  // Of the rows, [R]:
  const T** rows;
  accumulate* inverse_rms;
  accumulate* head_sums;  // c, added to
  int* bias_entries;
  accumulate** sums;  // [d] A + r B, added to
  accumulate* sum_values;
  // Of the pairs over one head, [C][R]:
  accumulate* scores;    // <w, s>, then r dl
  accumulate* logits;    // with rounded keys only: <w, key(s)>, then dl
  accumulate* products;  // <do, s>, then alpha a
  unfolded_site<accumulate> unfolded;

  int num_calls = 0;
  int num_rows = 0;
  key_rounding rounding = key_rounding::none;
};

//! Inner products of every pair over a head where keys are rounded: what the logits are made of.
template <class T, class Upstream>
void rounded_products(const backward_tile<T, Upstream>& tile, columns head) noexcept
{
  const row_range<T> rows{tile.rows, tile.num_rows};
  if (tile.rounding == key_rounding::storage) {
    dots(tile.queries, tile.num_calls, rows, head, tile.logits, tile.num_rows,
         rounded_key<T>{tile.inverse_rms});
  }
  else if (tile.rounding == key_rounding::storage_twice) {
    const accumulate_t<T>* const query = tile.unfolded.query;
    dots(&query, 1, rows, head, tile.logits, tile.num_rows,
         twice_rounded_key<T>{tile.inverse_rms, tile.unfolded.norm_weight});
  }
}

//! Whether every value is finite. Inner products are where a factor that is not finite shows: 0 times it is NaN.
template <class Accumulate>
[[nodiscard]] bool all_finite(const Accumulate* values, std::int64_t count) noexcept
{
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) { finite = finite && values[i] - values[i] == 0; }
  return finite;
}

//! From inner products to the factors that rows, calls and queries enter the gradients with; adds to c and to dbias.
template <class T, class Upstream>
void pair_factors(const backward_tile<T, Upstream>& tile, int head) noexcept
{
  using accumulate = accumulate_t<T>;
  const bool rounded = tile.rounding != key_rounding::none;
  for (int c = 0; c < tile.num_calls; ++c) {
    const folded_site<accumulate>& site = tile.sites[c];
    const accumulate lse = tile.lse[c][head];
    const accumulate sum = tile.dot_sums[c][head];
    for (int m = 0; m < tile.num_rows; ++m) {
      const std::int64_t pair = std::int64_t{c} * tile.num_rows + m;
      const accumulate inverse = tile.inverse_rms[m];
      const accumulate score = inverse * tile.scores[pair];
      const accumulate bias =
          tile.bias[c] == nullptr ? accumulate{0} : tile.bias[c][tile.bias_entries[m]];
      const accumulate logit = (rounded ? tile.logits[pair] : score) + bias;
      const accumulate weight = weight_of(logit, lse, site.logit_gate);
      // Conditions, not products with 0: a source without weight may have an infinite score.
      const bool fixed = weight == 0 || site.logit_gate == 0;
      const accumulate gradient =
          fixed ? accumulate{0} : site.logit_gate * weight * (tile.products[pair] - sum);
      if (gradient != 0) { tile.head_sums[m] += gradient * score; }
      if (tile.partials[c].bias != nullptr) {
        tile.partials[c].bias[1 + tile.bias_entries[m]] += gradient;
      }
      tile.products[pair] = weight == 0 ? accumulate{0} : site.gate * weight;
      // The inverse rms of a row that is not finite is 0 or NaN.
      tile.scores[pair] = gradient == 0 ? accumulate{0} : inverse * gradient;
      if (rounded) { tile.logits[pair] = gradient; }
    }
  }
}

//! Adds the rows' part of dw over a head where keys are rounded: dw sees the key as the logit did. Where something is not finite,
//! pair by pair, and none whose factor is 0.
template <class T, class Upstream>
void add_rounded_keys(const backward_tile<T, Upstream>& tile, columns head, bool finite) noexcept
{
  using accumulate = accumulate_t<T>;
  if (tile.query_sums == nullptr) { return; }
  if (finite) {
    combine(weight_matrix<accumulate>{tile.logits, tile.num_rows, 1}, tile.num_calls,
            row_range<T>{tile.rows, tile.num_rows}, head, tile.query_sums, head.begin,
            rounded_key<T>{tile.inverse_rms});
    return;
  }
  for (int c = 0; c < tile.num_calls; ++c) {
    for (int m = 0; m < tile.num_rows; ++m) {
      const accumulate* const factor = tile.logits + std::int64_t{c} * tile.num_rows + m;
      if (*factor == 0) { continue; }
      combine(weight_matrix<accumulate>{factor, 0, 0}, 1, row_range<T>{tile.rows + m, 1}, head,
              tile.query_sums + c, head.begin, rounded_key<T>{tile.inverse_rms + m});
    }
  }
}

//! Adds what a head's factors make of calls, queries and rows.
template <class T, class Upstream>
void add_pairs(const backward_tile<T, Upstream>& tile, columns head) noexcept
{
  using accumulate = accumulate_t<T>;
  using weights = weight_matrix<accumulate>;
  const int calls = tile.num_calls;
  const int rows = tile.num_rows;
  combine(weights{tile.products, 1, rows}, rows, row_range<Upstream>{tile.upstream, calls}, head,
          tile.sums, head.begin);
  combine(weights{tile.scores, 1, rows}, rows, row_range<accumulate>{tile.queries, calls}, head,
          tile.sums, head.begin);
  if (tile.rounding == key_rounding::none && tile.query_sums != nullptr) {
    combine(weights{tile.scores, rows, 1}, calls, row_range<T>{tile.rows, rows}, head,
            tile.query_sums, head.begin);
  }
}

//! The same pair by pair, and nothing for a factor of 0: what it would multiply may be infinite.
template <class T, class Upstream>
void add_pairs_with_weight(const backward_tile<T, Upstream>& tile, columns head) noexcept
{
  const bool with_queries = tile.rounding == key_rounding::none && tile.query_sums != nullptr;
  const auto add = [&](accumulate_t<T>* sums, accumulate_t<T> factor, const auto* values) {
    if (factor != 0) { add_scaled(sums + head.begin, factor, values + head.begin, head.count); }
  };
  for (int m = 0; m < tile.num_rows; ++m) {
    const auto pair = [&](int c) { return std::int64_t{c} * tile.num_rows + m; };
    for (int c = 0; c < tile.num_calls; ++c) {
      add(tile.sums[m], tile.products[pair(c)], tile.upstream[c]);
    }
    for (int c = 0; c < tile.num_calls; ++c) {
      add(tile.sums[m], tile.scores[pair(c)], tile.queries[c]);
      if (with_queries) { add(tile.query_sums[c], tile.scores[pair(c)], tile.rows[m]); }
    }
  }
}

//! One position: adds every call to every row's sums, and every row to every query's.
template <class T, class Upstream>
void backward_position(const backward_tile<T, Upstream>& tile, const shape& extent) noexcept
{
  const std::int64_t width = extent.head_width();
  const int calls = tile.num_calls;
  const int rows = tile.num_rows;
  const std::int64_t pairs = std::int64_t{calls} * rows;
  // A rounded key is NaN in every head of a row that is NaN in one.
  const bool finite_keys =
      tile.rounding == key_rounding::none || all_finite(tile.inverse_rms, std::int64_t{rows});
  for (int h = 0; h < extent.num_heads; ++h) {
    const columns head{h * width, width};
    dots(tile.queries, calls, row_range<T>{tile.rows, rows}, head, tile.scores, rows);
    dots(tile.upstream, calls, row_range<T>{tile.rows, rows}, head, tile.products, rows);
    const bool finite = all_finite(tile.scores, pairs) && all_finite(tile.products, pairs);
    rounded_products(tile, head);
    pair_factors(tile, h);
    if (finite) { add_pairs(tile, head); }
    else {
      add_pairs_with_weight(tile, head);
    }
    if (tile.rounding != key_rounding::none) {
      add_rounded_keys(tile, head, finite && finite_keys);
    }
  }
}

//! ds = A + r B - (r^2/d) c s in place, with r * (r * s): a large row's r^2 would vanish before it meets the row.
template <class Accumulate, class T>
void finish_row(Accumulate* sums, Accumulate head_sum, Accumulate inverse_rms, const T* row,
                const shape& extent) noexcept
{
  if (head_sum == 0) { return; }
  const Accumulate factor = -inverse_rms * head_sum / static_cast<Accumulate>(extent.full_width());
  for_each_block<Accumulate>(extent.width, [&](std::int64_t k, auto part) {
    lanes<Accumulate> sum;
    lanes<Accumulate> values;
    load<Accumulate>(sum, sums + k, part);
    load<Accumulate>(values, row + k, part);
    values = inverse_rms * values;
    sum += factor * values;
    store<Accumulate>(sums + k, sum, part);
  });
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
