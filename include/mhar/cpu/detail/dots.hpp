// SPDX-License-Identifier: Apache-2.0
//! Inner products over the columns of a head: of every query with every row (logits), and sums of squares.
#pragma once

#include <mhar/cpu/detail/lanes.hpp>
#include <mhar/thread/inverse_rms.hpp>
#include <mhar/types/shape.hpp>

#include <type_traits>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! A row enters an inner product as it is.
struct plain_key
{
  template <class Accumulate, class Part>
  MHAR_FORCE_INLINE void operator()(lanes<Accumulate>&, int, std::int64_t, Part) const noexcept
  {
  }
};

//! Rounded to T after its norm: round(s * r).
template <class T>
struct rounded_key
{
  const accumulate_t<T>* inverse_rms;  //!< of every row

  template <class Accumulate, class Part>
  MHAR_FORCE_INLINE void operator()(lanes<Accumulate>& key, int row, std::int64_t,
                                    Part) const noexcept
  {
    key = inverse_rms[row] * key;
    round_lanes<T, Accumulate>(key);
  }
};

//! Rounded to T after its norm and again after the norm's weight: round(g * round(s * r)).
template <class T>
struct twice_rounded_key
{
  const accumulate_t<T>* inverse_rms;
  const accumulate_t<T>* norm_weight;  //!< of column 0

  template <class Accumulate, class Part>
  MHAR_FORCE_INLINE void operator()(lanes<Accumulate>& key, int row, std::int64_t column,
                                    Part part) const noexcept
  {
    rounded_key<T>{inverse_rms}.template operator()<Accumulate>(key, row, column, part);
    lanes<Accumulate> weight;
    load<Accumulate>(weight, norm_weight + column, part);
    key = weight * key;
    round_lanes<T, Accumulate>(key);
  }
};

//! Rows at one position: row n starts at pointers[n].
template <class T>
struct row_range
{
  const T* const* pointers;
  int count;

  MHAR_FORCE_INLINE void fetch_ahead(const T*) const noexcept {}
};

//! Rows that will be met again at the next position, `ahead` elements further: while one position is worked on, the next is
//! fetched into the cache.
template <class T>
struct streamed_range
{
  const T* const* pointers;
  int count;
  std::int64_t ahead;

  //! By addresses: behind a private row alone nothing need be there.
  MHAR_FORCE_INLINE void fetch_ahead(const T* now) const noexcept
  {
    prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(now) +
                                           static_cast<std::uintptr_t>(ahead) * sizeof(T)));
  }
};

//! Columns [begin, begin + count): those of one head.
struct columns
{
  std::int64_t begin;
  std::int64_t count;
};

//! Nobody asks for the rows' sums of squares.
struct no_squares
{};

//! squares[n] += the sum of squares of row n over the columns that are read anyway.
template <class Accumulate>
struct add_squares
{
  Accumulate* squares;
};

template <int Queries, int Rows, class Accumulate, class X, class Range, class Key,
          class Squares = no_squares>
MHAR_FORCE_INLINE void dot_block(const X* const* queries, const Range& rows, int first_row,
                                 columns head, const Key& key, Accumulate* out,
                                 std::int64_t out_stride, const Squares& squares = {}) noexcept
{
  constexpr bool squared = std::is_same_v<Squares, add_squares<Accumulate>>;
  lanes<Accumulate> sums[std::size_t{Queries}][std::size_t{Rows}] = {};
  lanes<Accumulate> square_sums[std::size_t{squared ? Rows : 1}] = {};
  for_each_block<Accumulate>(head.count, [&](std::int64_t k, auto part) {
    const std::int64_t column = head.begin + k;
    lanes<Accumulate> query[std::size_t{Queries}];
    for (int q = 0; q < Queries; ++q) { load<Accumulate>(query[q], queries[q] + column, part); }
    for (int n = 0; n < Rows; ++n) {
      lanes<Accumulate> row;
      const auto* const from = rows.pointers[first_row + n] + column;
      rows.fetch_ahead(from);
      load<Accumulate>(row, from, part);
      if constexpr (squared) { square_sums[n] += row * row; }
      key.template operator()<Accumulate>(row, first_row + n, column, part);
      for (int q = 0; q < Queries; ++q) { sums[q][n] += query[q] * row; }
    }
  });
  for (int n = 0; n < Rows; ++n) {
    for (int q = 0; q < Queries; ++q) {
      out[q * out_stride + first_row + n] = total<Accumulate>(sums[q][n]);
    }
    if constexpr (squared) { squares.squares[first_row + n] += total<Accumulate>(square_sums[n]); }
  }
}

template <int Queries, class Accumulate, class X, class Range, class Key,
          class Squares = no_squares>
void dot_rows(const X* const* queries, const Range& rows, int first_row, int end_row, columns head,
              const Key& key, Accumulate* out, std::int64_t out_stride,
              const Squares& squares = {}) noexcept
{
  constexpr bool squared = std::is_same_v<Squares, add_squares<Accumulate>>;
  // Rows per block. Rounding a key costs more than blocks would save, and every block is code to compile.
  constexpr int most = std::is_same_v<Key, plain_key> ? most_sums / (squared ? 2 : 1) / Queries : 1;
  int n = first_row;
  if constexpr (most >= 8) {
    for (; n + 8 <= end_row; n += 8) {
      dot_block<Queries, 8>(queries, rows, n, head, key, out, out_stride, squares);
    }
  }
  if constexpr (most >= 4) {
    for (; n + 4 <= end_row; n += 4) {
      dot_block<Queries, 4>(queries, rows, n, head, key, out, out_stride, squares);
    }
  }
  if constexpr (most >= 2) {
    for (; n + 2 <= end_row; n += 2) {
      dot_block<Queries, 2>(queries, rows, n, head, key, out, out_stride, squares);
    }
  }
  for (; n < end_row; ++n) {
    dot_block<Queries, 1>(queries, rows, n, head, key, out, out_stride, squares);
  }
}

//! out[q*out_stride + n] = <query q, key(row n)> over a head's columns. Blocks of queries and rows share their loads; the
//! blocking does not enter the order of any sum.
template <class Accumulate, class X, class Range, class Key = plain_key>
void dots(const X* const* queries, int num_queries, const Range& rows, columns head,
          Accumulate* out, std::int64_t out_stride, const Key& key = {}) noexcept
{
  int q = 0;
  if constexpr (most_sums >= 8) {
    for (; q + 4 <= num_queries; q += 4) {
      dot_rows<4>(queries + q, rows, 0, rows.count, head, key, out + q * out_stride, out_stride);
    }
  }
  if constexpr (std::is_same_v<Key, plain_key>) {
    for (; q + 2 <= num_queries; q += 2) {
      dot_rows<2>(queries + q, rows, 0, rows.count, head, key, out + q * out_stride, out_stride);
    }
  }
  for (; q < num_queries; ++q) {
    dot_rows<1>(queries + q, rows, 0, rows.count, head, key, out + q * out_stride, out_stride);
  }
}

//! The sum of squares of `count` elements, each multiplied by `factor` first.
template <class Accumulate, class T>
[[nodiscard]] Accumulate sum_of_squares(const T* row, std::int64_t count,
                                        Accumulate factor) noexcept
{
  // Four sums, because one addition would wait for the one before it.
  constexpr std::int64_t step = static_cast<std::int64_t>(num_lanes<Accumulate>);
  lanes<Accumulate> sums[4] = {};
  const auto add = [&](lanes<Accumulate>& sum, std::int64_t k, auto part) {
    lanes<Accumulate> values;
    load<Accumulate>(values, row + k, part);
    values = factor * values;
    sum += values * values;
  };
  std::int64_t k = 0;
  for (; k + 4 * step <= count; k += 4 * step) {
    for (std::int64_t i = 0; i < 4; ++i) { add(sums[i], k + i * step, whole{}); }
  }
  for_each_block<Accumulate>(count - k,
                             [&](std::int64_t i, auto part) { add(sums[0], k + i, part); });
  sums[0] += sums[1];
  sums[2] += sums[3];
  sums[0] += sums[2];
  return total<Accumulate>(sums[0]);
}

//! The sum of squares of a row, head by head: the order in which dot_rows takes it along.
template <class Accumulate, class T>
[[nodiscard]] Accumulate sum_of_squares(const T* row, const shape& extent) noexcept
{
  const std::int64_t width = extent.head_width();
  Accumulate sum = 0;
  for (int h = 0; h < extent.num_heads; ++h) {
    lanes<Accumulate> squares = {};
    for_each_block<Accumulate>(width, [&](std::int64_t k, auto part) {
      lanes<Accumulate> values;
      load<Accumulate>(values, row + h * width + k, part);
      squares += values * values;
    });
    sum += total<Accumulate>(squares);
  }
  return sum;
}

//! (mean(s^2) + eps)^-1/2 of a whole row whose sum of squares is known, for every finite row.
template <class Accumulate, class T>
[[nodiscard]] Accumulate inverse_rms(const T* row, std::int64_t width, Accumulate eps,
                                     Accumulate sum) noexcept
{
  if (!thread::overflowed(sum)) { return thread::inverse_rms(sum, width, eps); }
  return thread::scaled_inverse_rms(
      sum_of_squares<Accumulate>(row, width, thread::overflow_scale<Accumulate>), width);
}
template <class Accumulate, class T>
[[nodiscard]] Accumulate inverse_rms(const T* row, std::int64_t width, Accumulate eps) noexcept
{
  return inverse_rms(row, width, eps, sum_of_squares<Accumulate>(row, width, Accumulate{1}));
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
