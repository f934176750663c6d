// SPDX-License-Identifier: Apache-2.0
//! Weighted sums of rows over the columns of a head: mixes forward, gradients of rows and queries backward.
#pragma once

#include <mhar/cpu/detail/dots.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Where the weight of row n in member j lies: values[j*member_stride + n*row_stride].
template <class Accumulate>
struct weight_matrix
{
  const Accumulate* values;
  std::int64_t member_stride;
  std::int64_t row_stride;

  [[nodiscard]] weight_matrix from_member(std::int64_t j) const noexcept
  {
    return {values + j * member_stride, member_stride, row_stride};
  }
};

//! `Blocks` blocks of columns of `Members` sums at a time. More than one block hides the latency of the additions where there are
//! few members; no sum depends on it.
template <int Members, int Blocks, class Accumulate, class Range, class Key, class Part>
MHAR_FORCE_INLINE void combine_block(const weight_matrix<Accumulate>& weights, const Range& rows,
                                     std::int64_t column, const Key& key, Accumulate* const* sums,
                                     std::int64_t sum_column, Part part) noexcept
{
  constexpr auto step = static_cast<std::int64_t>(num_lanes<Accumulate>);
  lanes<Accumulate> members[std::size_t{Members}][std::size_t{Blocks}];
  for (int j = 0; j < Members; ++j) {
    for (int b = 0; b < Blocks; ++b) {
      load<Accumulate>(members[j][b], sums[j] + sum_column + b * step, part);
    }
  }
  for (int n = 0; n < rows.count; ++n) {
    for (int b = 0; b < Blocks; ++b) {
      const auto* const from = rows.pointers[n] + column + b * step;
      rows.fetch_ahead(from);
      lanes<Accumulate> row;
      load<Accumulate>(row, from, part);
      key.template operator()<Accumulate>(row, n, column + b * step, part);
      for (int j = 0; j < Members; ++j) {
        members[j][b] += weights.values[j * weights.member_stride + n * weights.row_stride] * row;
      }
    }
  }
  for (int j = 0; j < Members; ++j) {
    for (int b = 0; b < Blocks; ++b) {
      store<Accumulate>(sums[j] + sum_column + b * step, members[j][b], part);
    }
  }
}

template <int Members, class Accumulate, class Range, class Key>
void combine_members(const weight_matrix<Accumulate>& weights, const Range& rows, columns head,
                     const Key& key, Accumulate* const* sums, std::int64_t sum_column) noexcept
{
  constexpr auto step = static_cast<std::int64_t>(num_lanes<Accumulate>);
  std::int64_t k = 0;
  if constexpr (Members < 4 && std::is_same_v<Key, plain_key>) {
    for (; k + 4 * step <= head.count; k += 4 * step) {
      combine_block<Members, 4>(weights, rows, head.begin + k, key, sums, sum_column + k, whole{});
    }
  }
  if constexpr (std::is_same_v<Key, plain_key>) {
    for (; k + 2 * step <= head.count; k += 2 * step) {
      combine_block<Members, 2>(weights, rows, head.begin + k, key, sums, sum_column + k, whole{});
    }
  }
  for_each_block<Accumulate>(head.count - k, [&](std::int64_t i, auto part) {
    combine_block<Members, 1>(weights, rows, head.begin + k + i, key, sums, sum_column + k + i,
                              part);
  });
}

//! sums[j][sum_column + k] += sum_n weight(j, n) key(row n)[head.begin + k], rows added in order.
template <class Accumulate, class Range, class Key = plain_key>
void combine(const weight_matrix<Accumulate>& weights, int num_members, const Range& rows,
             columns head, Accumulate* const* sums, std::int64_t sum_column,
             const Key& key = {}) noexcept
{
  if (rows.count == 0) { return; }
  int j = 0;
  if constexpr (std::is_same_v<Key, plain_key>) {
    for (; j + 4 <= num_members; j += 4) {
      combine_members<4>(weights.from_member(j), rows, head, key, sums + j, sum_column);
    }
    for (; j + 2 <= num_members; j += 2) {
      combine_members<2>(weights.from_member(j), rows, head, key, sums + j, sum_column);
    }
  }
  for (; j < num_members; ++j) {
    combine_members<1>(weights.from_member(j), rows, head, key, sums + j, sum_column);
  }
}

//! out = factor * row, over `count` columns.
template <class Accumulate, class T>
void scale_row(Accumulate* out, Accumulate factor, const T* row, std::int64_t count) noexcept
{
  for_each_block<Accumulate>(count, [&](std::int64_t k, auto part) {
    lanes<Accumulate> values;
    load<Accumulate>(values, row + k, part);
    store<Accumulate>(out + k, factor * values, part);
  });
}

//! out = a + b, over `count` columns, rounded once.
template <class Accumulate, class T, class Other>
void add_rows(T* out, const T* a, const Other* b, std::int64_t count) noexcept
{
  for_each_block<Accumulate>(count, [&](std::int64_t k, auto part) {
    lanes<Accumulate> sum;
    lanes<Accumulate> addend;
    load<Accumulate>(sum, a + k, part);
    load<Accumulate>(addend, b + k, part);
    sum += addend;
    store<Accumulate>(out + k, sum, part);
  });
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
