// SPDX-License-Identifier: Apache-2.0
//! The forward tile: at one position, the states of a group of calls are advanced over a range of rows, and the first call may
//! be finished. A single call is this with one member, all rows new, and a finish.
#pragma once

#include <mhar/cpu/detail/chunks.hpp>
#include <mhar/cpu/detail/combine.hpp>
#include <mhar/cpu/detail/finish.hpp>
#include <mhar/cpu/detail/fold_site.hpp>
#include <mhar/cpu/detail/softmax.hpp>
#include <mhar/types/sweep.hpp>

#include <algorithm>
#include <limits>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Arrays of one task of a forward pass.
template <class T>
struct forward_scratch
{
  using accumulate = accumulate_t<T>;

  //! With `updated`, a row is updated on the way and there is room for it.
  forward_scratch(arena& memory, std::int64_t width, int num_heads, int members, int range,
                  bool updated = false)
      : queries{memory.take<const accumulate*>(members)},
        rows{memory.take<const T*>(std::int64_t{range} + 1)},
        inverse_rms{memory.take<accumulate>(std::int64_t{range} + 1)},
        weights{memory.take<accumulate>((members == 1 ? std::int64_t{num_heads} : members) *
                                        (std::int64_t{range} + 1))},
        squares{memory.take<accumulate>(std::int64_t{range} + 1)},
        sums{memory.take<accumulate*>(members)},
        sum_values{memory.take<accumulate>(members * width)},
        lse{memory.take<accumulate>(num_heads)},
        updated_row{memory.take<T>(updated ? width : 0)},
        finish{memory, width}
  {
  }

  const accumulate** queries;  // [members]
  const T** rows;              // [range + 1], a private row last
  accumulate* inverse_rms;     // [range + 1]
  accumulate* weights;     // [members][range + 1] of one head; of a single member, [H][range + 1]
  accumulate* squares;     // [range + 1] sums of squares
  accumulate** sums;       // [members]
  accumulate* sum_values;  // [members][d]
  accumulate* lse;         // [H], of a first call that is finished
  T* updated_row;          // [d] or nothing
  finisher<accumulate> finish;
};

//! The row of a call that takes in a delta (update_problem); none when `row` is negative.
struct row_update
{
  int row = -1;
  const_matrix delta;
  matrix sum;
  matrix copy;
};

//! row + delta at a position, rounded once: routed in place of the row, and written where it is wanted. `sum` may be the row.
template <class T>
void update_row(const row_update& update, std::int64_t position, std::int64_t width,
                const forward_scratch<T>& scratch) noexcept
{
  const T* const row = scratch.rows[update.row];
  const auto* const delta = static_cast<const char*>(update.delta.data) +
                            position * update.delta.position_stride * size_of(update.delta.type);
  with_type(update.delta.type, [&](auto tag) {
    add_rows<accumulate_t<T>>(scratch.updated_row, row,
                              reinterpret_cast<const typename decltype(tag)::type*>(delta), width);
  });
  for (const matrix* to : {&update.sum, &update.copy}) {
    if (!*to) { continue; }
    T* const out = static_cast<T*>(to->data) + position * to->position_stride;
    std::copy(scratch.updated_row, scratch.updated_row + width, out);
  }
  scratch.rows[update.row] = scratch.updated_row;
}

//! What only single calls have besides the problem of a pass.
template <class T>
struct call_extras
{
  unfolded_site<accumulate_t<T>> unfolded;
  accumulate_t<T>* weights = nullptr;  //!< [P, H, num_sources]
  row_update update = {};
};

//! Whether logits and sums of squares are taken in one pass over the rows. It needs no inverse rms in between, and the logits of
//! all heads kept, which a single member can afford.
template <class T>
[[nodiscard]] bool takes_squares_with_logits(const advance_problem<T>& problem) noexcept
{
  return problem.num_calls == 1 && problem.num_new_rows == problem.num_rows &&
         problem.sites.rounding == key_rounding::none;
}

//! The rows of the range, then a private one, at a position; how many.
template <class T>
int find_rows(const advance_problem<T>& problem, std::int64_t position, const T** rows) noexcept
{
  for (int n = 0; n < problem.num_rows; ++n) {
    rows[n] = problem.rows.at(problem.first_row + n, position);
  }
  if (problem.private_row == nullptr) { return problem.num_rows; }
  rows[problem.num_rows] = problem.private_row + position * problem.private_stride;
  return problem.num_rows + 1;
}

//! Inverse rms of the rows at a position: those of new rows and of a private one are computed and written. Sums of squares, when
//! not null, are known.
template <class T>
void find_inverse_rms(const advance_problem<T>& problem, std::int64_t position,
                      const accumulate_t<T>* squares, const forward_scratch<T>& scratch) noexcept
{
  using accumulate = accumulate_t<T>;
  const shape& extent = problem.extent;
  const auto eps = static_cast<accumulate>(problem.eps);
  const int num_known = problem.num_rows - problem.num_new_rows;
  const int count = problem.num_rows + (problem.private_row != nullptr ? 1 : 0);
  for (int n = 0; n < count; ++n) {
    accumulate* kept = nullptr;
    if (n == problem.num_rows) { kept = problem.private_inverse_rms + position; }
    else if (problem.inverse_rms != nullptr) {
      kept = problem.inverse_rms + (problem.first_row + n) * extent.num_positions + position;
    }
    if (n < num_known) {
      scratch.inverse_rms[n] = *kept;
      continue;
    }
    const T* const row = scratch.rows[n];
    const accumulate sum =
        squares != nullptr ? squares[n] : sum_of_squares<accumulate>(row, extent);
    scratch.inverse_rms[n] = inverse_rms(row, extent.width, eps, sum);
    if (kept != nullptr) { *kept = scratch.inverse_rms[n]; }
  }
}

//! Inner products of the members with the rows over one head, [members][stride]; only the first member meets a private row.
template <class T>
void head_products(const advance_problem<T>& problem, const call_extras<T>& extras, columns head,
                   std::int64_t ahead, const forward_scratch<T>& scratch) noexcept
{
  const int stride = problem.num_rows + 1;
  const auto products = [&](const auto& key) {
    dots(scratch.queries, problem.num_calls,
         streamed_range<T>{scratch.rows, problem.num_rows, ahead}, head, scratch.weights, stride,
         key);
    if (problem.private_row != nullptr) {
      dot_rows<1>(scratch.queries, row_range<T>{scratch.rows, stride}, problem.num_rows, stride,
                  head, key, scratch.weights, stride);
    }
  };
  switch (problem.sites.rounding) {
    case key_rounding::none: products(plain_key{}); break;
    case key_rounding::storage: products(rounded_key<T>{scratch.inverse_rms}); break;
    default:
      products(twice_rounded_key<T>{scratch.inverse_rms, extras.unfolded.norm_weight});
      break;
  }
}

//! From a member's inner products with `count` rows to its logits.
template <class T>
void make_logits(const advance_problem<T>& problem, int member, int count,
                 const accumulate_t<T>* inverse_rms, accumulate_t<T>* products) noexcept
{
  if (problem.sites.rounding == key_rounding::none) {
    for (int n = 0; n < count; ++n) { products[n] *= inverse_rms[n]; }
  }
  if (problem.sites.bias == nullptr) { return; }
  const accumulate_t<T>* const bias =
      problem.sites.bias + (problem.first_call + member) * problem.sites.bias_stride;
  for (int n = 0; n < problem.num_rows; ++n) { products[n] += bias[problem.first_row + n]; }
  if (count > problem.num_rows) { products[count - 1] += bias[problem.private_bias]; }
}

//! What a member starts from over one head: the logit, and sums[...] is filled once its weight is known.
template <class T>
struct carried_state
{
  accumulate_t<T> logit = -std::numeric_limits<accumulate_t<T>>::infinity();
  const void* values = nullptr;
  element type = element::float32;
};

template <class T>
[[nodiscard]] carried_state<T> carry_in(const advance_problem<T>& problem, int member, int head,
                                        std::int64_t position) noexcept
{
  const shape& extent = problem.extent;
  const std::int64_t first_column = head * extent.head_width();
  if (problem.start == pass_start::kept) {
    const std::int64_t slot = problem.states.first_slot + member;
    const std::int64_t first =
        slot * problem.states.slot_stride + position * extent.width + first_column;
    return {problem.states.lse[(slot * extent.num_positions + position) * extent.num_heads + head],
            static_cast<const char*>(problem.states.mix) + first * size_of(problem.states.type),
            problem.states.type};
  }
  if (problem.sites.null_source == nullptr) { return {}; }
  const std::int64_t call = problem.first_call + member;
  return {problem.sites.null_logit[call * extent.num_heads + head],
          problem.sites.null_source + call * extent.width + first_column,
          element_of<accumulate_t<T>>::value};
}

//! Rows that are worked on over the whole width before the next ones.
inline constexpr int rows_at_once = 4;

//! One position of a forward pass: kept states are written, a finished first call's mix is left in sums[0], its lse in lse.
//! `ahead` is the distance to the rows of the position that comes next, or 0.
template <class T>
void forward_position(const advance_problem<T>& problem, const call_extras<T>& extras,
                      std::int64_t position, std::int64_t ahead,
                      const forward_scratch<T>& scratch) noexcept
{
  using accumulate = accumulate_t<T>;
  const shape& extent = problem.extent;
  const std::int64_t width = extent.head_width();
  const int members = problem.num_calls;
  const int stride = problem.num_rows + 1;
  const bool finishes = problem.end == pass_end::finish_first;
  const int num_rows = find_rows(problem, position, scratch.rows);
  if (extras.update.row >= 0) { update_row(extras.update, position, extent.width, scratch); }
  const bool with_squares = takes_squares_with_logits(problem);
  if (with_squares) {
    std::fill(scratch.squares, scratch.squares + num_rows, accumulate{0});
    // A few rows at a time over the whole width: memory is read in long runs, whatever the width of a head.
    for (int first = 0; first < num_rows; first += rows_at_once) {
      for (int h = 0; h < extent.num_heads; ++h) {
        dot_rows<1>(scratch.queries, streamed_range<T>{scratch.rows, num_rows, ahead}, first,
                    (std::min)(first + rows_at_once, num_rows), columns{h * width, width},
                    plain_key{}, scratch.weights + std::int64_t{h} * stride, stride,
                    add_squares<accumulate>{scratch.squares});
      }
    }
  }
  find_inverse_rms(problem, position, with_squares ? scratch.squares : nullptr, scratch);

  for (int h = 0; h < extent.num_heads; ++h) {
    const columns head{h * width, width};
    accumulate* const head_weights =
        scratch.weights + (with_squares ? std::int64_t{h} * stride : 0);
    if (!with_squares) { head_products(problem, extras, head, ahead, scratch); }
    for (int g = 0; g < members; ++g) {
      accumulate* const weights = head_weights + std::int64_t{g} * stride;
      const bool first = finishes && g == 0;
      const int count = g == 0 ? num_rows : problem.num_rows;
      make_logits(problem, g, count, scratch.inverse_rms, weights);
      const carried_state<T> carried = carry_in(problem, g, h, position);
      const softmax_sum<accumulate> sum = softmax(weights, count, carried.logit);
      accumulate* const values = scratch.sums[g] + head.begin;
      if (carried.values == nullptr) { std::fill(values, values + width, accumulate{0}); }
      else {
        with_type(carried.type, [&](auto tag) {
          scale_row(values, sum.carried,
                    static_cast<const typename decltype(tag)::type*>(carried.values), width);
        });
      }
      if (first) {
        scratch.lse[h] = sum.lse;
        if (extras.weights != nullptr) {
          const int has_null = problem.sites.null_source != nullptr ? 1 : 0;
          accumulate* const out =
              extras.weights + (position * extent.num_heads + h) * (count + has_null);
          if (has_null == 1) { out[0] = sum.carried; }
          std::copy(weights, weights + count, out + has_null);
        }
      }
      else {
        const std::int64_t slot = problem.states.first_slot + g;
        problem.states.lse[(slot * extent.num_positions + position) * extent.num_heads + h] =
            sum.lse;
      }
    }
    combine(weight_matrix<accumulate>{head_weights, stride, 1}, members,
            row_range<T>{scratch.rows, problem.num_rows}, head, scratch.sums, head.begin);
    if (problem.private_row != nullptr) {
      combine(weight_matrix<accumulate>{head_weights + problem.num_rows, stride, 1}, 1,
              row_range<T>{scratch.rows + problem.num_rows, 1}, head, scratch.sums, head.begin);
    }
  }

  for (int g = finishes ? 1 : 0; g < members; ++g) {
    const std::int64_t slot = problem.states.first_slot + g;
    write(problem.states.mix, problem.states.type, update::store,
          slot * problem.states.slot_stride + position * extent.width, scratch.sums[g],
          extent.width);
  }
}

//! Once per task, before the first position.
template <class T>
void prepare(const advance_problem<T>& problem, const call_extras<T>& extras,
             forward_scratch<T>& scratch) noexcept
{
  const std::int64_t width = problem.extent.width;
  const bool twice = problem.sites.rounding == key_rounding::storage_twice;
  const accumulate_t<T>* const queries = twice ? extras.unfolded.query : problem.sites.query;
  for (int g = 0; g < problem.num_calls; ++g) {
    scratch.queries[g] = queries + (problem.first_call + g) * width;
    scratch.sums[g] = scratch.sum_values + g * width;
  }
  if (problem.end == pass_end::finish_first) { scratch.finish.prepare(problem.stage, width); }
}

//! A chunk of positions of a forward pass.
template <class T>
void forward_chunk(const advance_problem<T>& problem, const call_extras<T>& extras,
                   const chunk& positions, forward_scratch<T>& scratch) noexcept
{
  const int num_heads = problem.extent.num_heads;
  prepare(problem, extras, scratch);
  for (std::int64_t position = positions.begin; position < positions.end; ++position) {
    const std::int64_t ahead = position + 1 < positions.end ? problem.rows.position_stride : 0;
    forward_position(problem, extras, position, ahead, scratch);
    if (problem.end == pass_end::keep_all) { continue; }
    if (problem.outputs.lse != nullptr) {
      std::copy(scratch.lse, scratch.lse + num_heads, problem.outputs.lse + position * num_heads);
    }
    finish_position(scratch.finish, problem.outputs, position, scratch.sums[0],
                    problem.extent.width);
  }
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
