// SPDX-License-Identifier: Apache-2.0
//! The source rows of a call as a kernel reads them: one base and two strides, or pointers that travel in the kernel's parameters.
#pragma once

#include <mhar/types/view.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Row n of position p starts at base + n*row_stride + p*position_stride, or, when base is null, at list[n] + p*position_stride.
//! Capacity is the longest list that fits; a kernel's parameters hold at most 32,764 bytes.
template <class T, int Capacity>
struct row_pointers
{
  static constexpr int capacity = Capacity;

  const T* base = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t position_stride = 0;
  const T* list[static_cast<std::size_t>(Capacity > 0 ? Capacity : 1)] = {};

  [[nodiscard]] __device__ __forceinline__ const T* at(int row, std::int64_t position) const
  {
    const T* const first = Capacity == 0 || base != nullptr ? base + row * row_stride : list[row];
    return first + position * position_stride;
  }
};

//! Whether `num_rows` rows fit: listed ones at equal distances count as strided.
template <class T>
[[nodiscard]] bool is_strided(const const_rows<T>& rows, int num_rows) noexcept
{
  if (rows.list == nullptr) { return true; }
  for (int n = 2; n < num_rows; ++n) {
    // Addresses, since pointers into different arrays have no difference.
    const auto before = reinterpret_cast<std::uintptr_t>(rows.list[n - 1]);
    const auto step = reinterpret_cast<std::uintptr_t>(rows.list[1]) -
                      reinterpret_cast<std::uintptr_t>(rows.list[0]);
    if (reinterpret_cast<std::uintptr_t>(rows.list[n]) - before != step || step % sizeof(T) != 0) {
      return false;
    }
  }
  return num_rows <= 1 || (reinterpret_cast<std::uintptr_t>(rows.list[1]) -
                           reinterpret_cast<std::uintptr_t>(rows.list[0])) %
                                  sizeof(T) ==
                              0;
}

//! Rows as parameters; is_strided(rows, num_rows) or num_rows <= Capacity.
template <class T, int Capacity>
[[nodiscard]] row_pointers<T, Capacity> make_row_pointers(const const_rows<T>& rows,
                                                          int num_rows) noexcept
{
  row_pointers<T, Capacity> result;
  result.position_stride = rows.position_stride;
  if (num_rows == 0) { return result; }
  if (is_strided(rows, num_rows)) {
    result.base = rows.row(0);
    if (rows.list == nullptr) { result.row_stride = rows.row_stride; }
    else if (num_rows > 1) {
      const auto step = reinterpret_cast<std::intptr_t>(rows.list[1]) -
                        reinterpret_cast<std::intptr_t>(rows.list[0]);
      result.row_stride = step / static_cast<std::intptr_t>(sizeof(T));
    }
    return result;
  }
  for (int n = 0; n < num_rows && n < Capacity; ++n) { result.list[n] = rows.list[n]; }
  return result;
}

//! Whether every row of every position starts at a multiple of 16 bytes.
template <class T>
[[nodiscard]] bool rows_are_aligned(const const_rows<T>& rows, int num_rows,
                                    std::int64_t num_positions) noexcept
{
  constexpr std::int64_t step = 16 / static_cast<std::int64_t>(sizeof(T));
  if (num_positions > 1 && rows.position_stride % step != 0) { return false; }
  if (rows.list == nullptr && num_rows > 1 && rows.row_stride % step != 0) { return false; }
  const int starts = rows.list == nullptr ? (num_rows > 0 ? 1 : 0) : num_rows;
  for (int n = 0; n < starts; ++n) {
    if (reinterpret_cast<std::uintptr_t>(rows.row(n)) % 16 != 0) { return false; }
  }
  return true;
}

}  // namespace block
MHAR_NAMESPACE_END
