// SPDX-License-Identifier: Apache-2.0
//! The gradients of all rows of a single call at one position, and the rows' part of dw, in one pass over the rows: with one call
//! and every c known, nothing needs to be kept in between.
#pragma once

#include <mhar/cpu/detail/arena.hpp>
#include <mhar/cpu/detail/dots.hpp>
#include <mhar/types/shape.hpp>
#include <mhar/types/view.hpp>

#include <algorithm>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! What row m enters the gradients with over head h: ds = call * do + query * w + self * s,  dw += query * s.
template <class Accumulate>
struct row_factors
{
  const Accumulate* call;   // [H][R] alpha a
  const Accumulate* query;  // [H][R] r dl
  const Accumulate*
      self;  // [R] -(r^2/d) c; where r^2 underflows, this term is below the rounding of the others
};

//! The two vectors that every row's gradient is made of, and where dw is added up; all over the width.
template <class Accumulate>
struct call_vectors
{
  const Accumulate* gradient;  // do
  const Accumulate* query;     // w
  Accumulate* query_sum;       // dw, or null when not wanted
};

//! Where the rows' gradients go: void* out[R], null for one that is not wanted, and the elements to the next position, or 0.
struct gradient_targets
{
  void* const* out;
  std::int64_t ahead;
};

//! One row with its factors, copied so that the compiler need not read them again after every store.
template <class Accumulate, class T, class Out>
struct row_with_factors
{
  const T* row;
  Out* out;
  Accumulate call;
  Accumulate query;
  Accumulate self;
};

//! `Rows` rows, over a head's columns; without their gradients when Out is void.
template <int Rows, class Out, update Mode, class Accumulate, class T>
void row_gradient_block(const streamed_range<T>& rows, const gradient_targets& to,
                        const row_factors<Accumulate>& factors,
                        const call_vectors<Accumulate>& vectors, int first_row,
                        columns head) noexcept
{
  row_with_factors<Accumulate, T, Out> members[std::size_t{Rows}];
  for (int m = 0; m < Rows; ++m) {
    const int n = first_row + m;
    members[m] = {rows.pointers[n], static_cast<Out*>(to.out[n]), factors.call[n], factors.query[n],
                  factors.self[n]};
  }
  const Accumulate* const gradients = vectors.gradient;
  const Accumulate* const queries = vectors.query;
  Accumulate* const query_sums = vectors.query_sum;
  const std::int64_t out_ahead = to.ahead;
  const streamed_range<T> range = rows;
  for_each_block<Accumulate>(head.count, [&](std::int64_t k, auto part) {
    const std::int64_t column = head.begin + k;
    lanes<Accumulate> gradient;
    lanes<Accumulate> query;
    lanes<Accumulate> query_sum = {};
    load<Accumulate>(gradient, gradients + column, part);
    load<Accumulate>(query, queries + column, part);
    if (query_sums != nullptr) { load<Accumulate>(query_sum, query_sums + column, part); }
    for (int m = 0; m < Rows; ++m) {
      lanes<Accumulate> row;
      load<Accumulate>(row, members[m].row + column, part);
      range.fetch_ahead(members[m].row + column);
      query_sum += members[m].query * row;
      if constexpr (!std::is_void_v<Out>) {
        lanes<Accumulate> sum = members[m].call * gradient;
        sum += members[m].query * query;
        sum += members[m].self * row;
        prefetch(members[m].out + column + out_ahead);
        write_lanes<Mode, Accumulate>(members[m].out + column, sum, part);
      }
    }
    if (query_sums != nullptr) { store<Accumulate>(query_sums + column, query_sum, part); }
  });
}

//! Every row over the whole width; gradients are of element Out.
template <class Out, update Mode, class Accumulate, class T>
void row_gradients(const streamed_range<T>& rows, const gradient_targets& to,
                   const row_factors<Accumulate>& factors, const call_vectors<Accumulate>& vectors,
                   const shape& extent) noexcept
{
  const std::int64_t width = extent.head_width();
  const auto for_each_head = [&](auto visit) {
    for (int h = 0; h < extent.num_heads; ++h) {
      const std::int64_t skipped = std::int64_t{h} * rows.count;
      visit(row_factors<Accumulate>{factors.call + skipped, factors.query + skipped, factors.self},
            columns{h * width, width});
    }
  };
  int m = 0;
  for (; m + 4 <= rows.count; m += 4) {
    const bool all = to.out[m] != nullptr && to.out[m + 1] != nullptr && to.out[m + 2] != nullptr &&
                     to.out[m + 3] != nullptr;
    if (!all) { break; }
    for_each_head([&](const auto& of_head, columns head) {
      row_gradient_block<4, Out, Mode>(rows, to, of_head, vectors, m, head);
    });
  }
  for (; m < rows.count; ++m) {
    for_each_head([&](const auto& of_head, columns head) {
      if (to.out[m] != nullptr) {
        row_gradient_block<1, Out, Mode>(rows, to, of_head, vectors, m, head);
      }
      else if (vectors.query_sum != nullptr) {
        row_gradient_block<1, void, Mode>(rows, to, of_head, vectors, m, head);
      }
    });
  }
}

//! Room for the rows that are met where something is not finite.
template <class T>
struct zero_vectors
{
  zero_vectors(arena& memory, std::int64_t width)
      : row{memory.take<T>(width)}, values{memory.take<accumulate_t<T>>(width)}
  {
  }

  T* row;                   // [d]
  accumulate_t<T>* values;  // [d]
};

//! The same row by row and head by head, for a position at which do, w or a row is not finite: zeros stand for what would meet
//! a factor of 0.
template <class Out, update Mode, class T>
void row_gradients_with_weight(const streamed_range<T>& rows, const gradient_targets& to,
                               const row_factors<accumulate_t<T>>& factors,
                               const call_vectors<accumulate_t<T>>& vectors, const shape& extent,
                               const zero_vectors<T>& zeros) noexcept
{
  using accumulate = accumulate_t<T>;
  const std::int64_t width = extent.head_width();
  std::fill(zeros.row, zeros.row + extent.width, T{});
  std::fill(zeros.values, zeros.values + extent.width, accumulate{0});
  for (int m = 0; m < rows.count; ++m) {
    for (int h = 0; h < extent.num_heads; ++h) {
      const std::int64_t pair = std::int64_t{h} * rows.count + m;
      const bool unscored = factors.query[pair] == 0;
      const T* const row = unscored && factors.self[m] == 0 ? zeros.row : rows.pointers[m];
      const call_vectors<accumulate> present{
          factors.call[pair] == 0 ? zeros.values : vectors.gradient,
          unscored ? zeros.values : vectors.query, unscored ? nullptr : vectors.query_sum};
      const row_factors<accumulate> own{factors.call + pair, factors.query + pair,
                                        factors.self + m};
      const streamed_range<T> one{&row, 1, 0};
      const gradient_targets target{to.out + m, 0};
      const columns head{h * width, width};
      if (to.out[m] != nullptr) {
        row_gradient_block<1, Out, Mode>(one, target, own, present, 0, head);
      }
      else if (present.query_sum != nullptr) {
        row_gradient_block<1, void, Mode>(one, target, own, present, 0, head);
      }
    }
  }
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
