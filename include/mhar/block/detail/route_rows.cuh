// SPDX-License-Identifier: Apache-2.0
//! Where the rows of a batch are read from: memory, a stage in shared memory, or the null source that stands for a row.
#pragma once

#include <mhar/block/detail/columns.cuh>
#include <mhar/block/route_parameters.cuh>
#include <mhar/block/row_pointers.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! round(row + delta) for `count` columns from `column` on.
template <class T>
[[nodiscard]] __device__ __forceinline__ thread::vector<T> add_delta(const route_parameters<T>& p,
                                                                     const thread::vector<T>& row,
                                                                     std::int64_t position,
                                                                     int column, int count)
{
  using accumulate = accumulate_t<T>;
  constexpr int width = thread::chunk_width<T>;
  auto sum = load_columns<accumulate, width>(p.delta.data, p.delta.type,
                                             position * p.delta.position_stride + column, count);
#pragma unroll
  for (int i = 0; i < width; ++i) { sum[i] += widen<accumulate>(row[i]); }
  return thread::round_all<T>(sum);
}

//! Writes a row that delta was added to where the problem wants it.
template <class T>
__device__ __forceinline__ void store_updated(const route_parameters<T>& p,
                                              const thread::vector<T>& row, std::int64_t position,
                                              int column, int count)
{
  const matrix* const targets[] = {&p.sum, &p.copy};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (!*targets[i]) { continue; }
    T* const to =
        static_cast<T*>(targets[i]->data) + position * targets[i]->position_stride + column;
    if (count == thread::chunk_width<T> && thread::is_aligned(to, 16)) {
      thread::store_vector(to, row);
    }
    else {
      thread::store_elements(to, row, count);
    }
  }
}

//! Rows first, first + 1, ... of one position, read from memory at each use.
template <class T, class Rows>
class rows_in_memory
{
public:
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
    return first_ + k == p_.updated_row ? add_delta(p_, row, position_, column, count) : row;
  }

private:
  const route_parameters<T>& p_;
  const Rows& rows_;
  std::int64_t position_;
  int first_;
};

//! Rows in shared memory, row_bytes apart. A thread reads and changes its own chunks only, until a barrier.
template <class T>
class staged_rows
{
public:
  static constexpr bool keeps_changes = true;

  __device__ __forceinline__ staged_rows(char* stage, int row_bytes)
      : stage_{stage}, row_bytes_{row_bytes}
  {
  }
  [[nodiscard]] __device__ __forceinline__ thread::vector<T> load(int k, int chunk, int, int) const
  {
    return thread::load_vector(reinterpret_cast<const T*>(stage_ + k * row_bytes_ + chunk * 16));
  }
  __device__ __forceinline__ void replace(int k, int chunk, const thread::vector<T>& row) const
  {
    thread::store_vector(reinterpret_cast<T*>(stage_ + k * row_bytes_ + chunk * 16), row);
  }

private:
  char* stage_;
  int row_bytes_;
};

//! The null source as row 0 of a batch, in the arithmetic's type.
template <class T>
class null_row
{
public:
  static constexpr bool keeps_changes = true;

  __device__ __forceinline__ explicit null_row(const route_parameters<T>& p) : p_{p} {}
  [[nodiscard]] __device__ __forceinline__ thread::vector<accumulate_t<T>, thread::chunk_width<T>>
  load(int, int, int column, int count) const
  {
    return load_columns<accumulate_t<T>, thread::chunk_width<T>>(
        p_.null_source.data, p_.null_source.type, column, count);
  }

private:
  const route_parameters<T>& p_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
