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
};

template <int Members, class Accumulate, class T, class Key>
MHAR_FORCE_INLINE void combine_block(weight_matrix<Accumulate> weights, const T* const* rows,
                                     int num_rows, columns head, const Key& key, int first,
                                     Accumulate* const* sums, std::int64_t sum_column) noexcept
{
  const Accumulate* const values = weights.values + first * weights.member_stride;
  for_each_block<Accumulate>(head.count, [&](std::int64_t k, auto part) {
    lanes<Accumulate> members[std::size_t{Members}];
    for (int j = 0; j < Members; ++j) {
      load<Accumulate>(members[j], sums[first + j] + sum_column + k, part);
    }
    for (int n = 0; n < num_rows; ++n) {
      lanes<Accumulate> row;
      load<Accumulate>(row, rows[n] + head.begin + k, part);
      key.template operator()<Accumulate>(row, n, head.begin + k, part);
      for (int j = 0; j < Members; ++j) {
        members[j] += values[j * weights.member_stride + n * weights.row_stride] * row;
      }
    }
    for (int j = 0; j < Members; ++j) {
      store<Accumulate>(sums[first + j] + sum_column + k, members[j], part);
    }
  });
}

//! sums[j][sum_column + k] += sum_n weight(j, n) key(row n)[head.begin + k], rows added in order.
template <class Accumulate, class T, class Key = plain_key>
void combine(weight_matrix<Accumulate> weights, int num_members, const T* const* rows, int num_rows,
             columns head, Accumulate* const* sums, std::int64_t sum_column,
             const Key& key = {}) noexcept
{
  if (num_rows == 0) { return; }
  int j = 0;
  for (; j + 4 <= num_members; j += 4) {
    combine_block<4>(weights, rows, num_rows, head, key, j, sums, sum_column);
  }
  for (; j + 2 <= num_members; j += 2) {
    combine_block<2>(weights, rows, num_rows, head, key, j, sums, sum_column);
  }
  for (; j < num_members; ++j) {
    combine_block<1>(weights, rows, num_rows, head, key, j, sums, sum_column);
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

}  // namespace cpu::detail
MHAR_NAMESPACE_END
