// SPDX-License-Identifier: Apache-2.0
//! Where the rows of a batch are read from: memory, a stage in shared memory, or the null source that stands for a row.
#pragma once

#include <mhar/block/detail/route_columns.cuh>
#include <mhar/block/row_pointers.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Rows first, first + 1, ... of one position, read from memory at each use.
template <class T, class Rows>
class rows_in_memory
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;

  //! Other threads may not see what one of them changes, so a row that delta is added to is calculated at each use.
  static constexpr bool keeps_changes = false;

  __device__ __forceinline__ rows_in_memory(const route_parameters<T>& p, const Rows& rows,
                                            std::int64_t position, int first)
      : p_{p}, rows_{rows}, position_{position}, first_{first}
  {
  }
  [[nodiscard]] __device__ __forceinline__ thread::vector<T> load(int k, int, int column,
                                                                  int count) const
  {
    const T* const from = rows_.at(first_ + k, position_) + column;
    const bool whole = count == thread::chunk_width<T> && thread::is_aligned(from, 16);
    const thread::vector<T> row =
        whole ? thread::load_vector(from) : thread::load_elements(from, count);
    if (first_ + k != p_.updated_row) { return row; }

    using accumulate = accumulate_t<T>;
    constexpr int width = thread::chunk_width<T>;
    auto sum = load_columns<accumulate, width>(
        p_.delta.data, p_.delta.type, position_ * p_.delta.position_stride + column, count);
#pragma unroll
    for (int i = 0; i < width; ++i) { sum[i] += widen<accumulate>(row[i]); }
    return thread::round_all<T>(sum);
  }
  //! Writes a row that delta was added to where the problem wants it.
  __device__ __forceinline__ void store_updated(const thread::vector<T>& row, int column,
                                                int count) const
  {
    for (const matrix* const to : {&p_.sum, &p_.copy}) {
      if (*to) {
        thread::store_elements(static_cast<T*>(to->data) + position_ * to->position_stride + column,
                               row, count);
      }
    }
  }

private:
  const route_parameters<T>& p_;
  const Rows& rows_;
  std::int64_t position_;
  int first_;
};

//! round(row + delta) of chunk i, stored where the problem wants it as well. Delta is T or float; all are aligned.
template <class T, class Columns>
[[nodiscard]] __device__ __forceinline__ thread::vector<T> add_delta(const route_parameters<T>& p,
                                                                     const Columns& columns,
                                                                     std::int64_t position, int i,
                                                                     const thread::vector<T>& row)
{
  auto sum = columns.load(p.delta, position, i);
#pragma unroll
  for (int c = 0; c < thread::chunk_width<T>; ++c) { sum[c] += widen<accumulate_t<T>>(row[c]); }
  const auto rounded = thread::round_all<T>(sum);
  const int column = columns.column(i);
  if (p.sum) {
    thread::store_vector(static_cast<T*>(p.sum.data) + position * p.sum.position_stride + column,
                         rounded);
  }
  if (p.copy) {
    thread::store_vector(static_cast<T*>(p.copy.data) + position * p.copy.position_stride + column,
                         rounded);
  }
  return rounded;
}

//! Rows in shared memory, row_bytes apart. A thread reads and changes its own chunks only, until a barrier.
template <class T>
class staged_rows
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;

  static constexpr bool keeps_changes = true;

  __device__ __forceinline__ staged_rows(char* stage, int row_bytes)
      : stage_{stage}, row_bytes_{row_bytes}
  {
  }
  [[nodiscard]] __device__ __forceinline__ thread::vector<T> load(int k, int chunk, int, int) const
  {
    return thread::load_vector(at(k, chunk));
  }

  //! Row k becomes round(row + delta).
  template <class Columns>
  __device__ __forceinline__ void update(const route_parameters<T>& p, const Columns& columns,
                                         std::int64_t position, int k) const
  {
#pragma unroll
    for (int i = 0; i < columns.size(); ++i) {
      if (!columns.valid(i)) { continue; }
      T* const place = at(k, columns.chunk(i));
      thread::store_vector(place, add_delta(p, columns, position, i, thread::load_vector(place)));
    }
  }

private:
  [[nodiscard]] __device__ __forceinline__ T* at(int k, int chunk) const
  {
    return reinterpret_cast<T*>(stage_ + k * row_bytes_ + chunk * 16);
  }

  char* stage_;
  int row_bytes_;
};

//! The null source as row 0 of a batch, in the arithmetic's type.
template <class T>
class null_row
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;

  __device__ __forceinline__ explicit null_row(const route_parameters<T>& p) : p_{p} {}
  [[nodiscard]] __device__ __forceinline__ thread::vector<accumulate_t<T>, thread::chunk_width<T>>
  load(int, int, int column, int count) const
  {
    using accumulate = accumulate_t<T>;
    return load_hot_parameter<accumulate, thread::chunk_width<T>>(p_.null_source, column, count,
                                                                  accumulate{0});
  }

private:
  const route_parameters<T>& p_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
