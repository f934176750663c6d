// SPDX-License-Identifier: Apache-2.0
//! Non-owning, trivially copyable views: parameter arrays, [P, d] matrices, and the rows of a call in its three layouts.
//!
//! Strides count elements and are 64-bit; the last extent always has stride 1; any alignment of the element is allowed.
//! A view whose pointer is null is absent: "not given" as an input, "not wanted" as an output.
#pragma once

#include <mhar/types/element.hpp>

#include <cstddef>
#include <cstdint>

MHAR_NAMESPACE_BEGIN

//! What writing an output does. Store never reads the destination, so it may hold NaN or nothing.
enum class update : std::uint8_t
{
  store,
  accumulate
};

//! Scratch memory that a verb is given, and overwrites.
struct workspace_view
{
  const void* data = nullptr;
  std::size_t bytes = 0;
};

//! A contiguous read-only array of any element type, such as a query [d] or a gate [1].
struct const_array
{
  const void* data = nullptr;
  element type = element::float32;

  constexpr const_array() noexcept = default;
  constexpr const_array(const void* pointer, element kind) noexcept : data{pointer}, type{kind} {}
  template <class T, element Kind = element_of<T>::value>
  constexpr const_array(const T* pointer) noexcept : data{pointer}, type{Kind}
  {
  }
  [[nodiscard]] MHAR_HOST_DEVICE constexpr explicit operator bool() const noexcept
  {
    return data != nullptr;
  }
};

//! A contiguous writable array of any element type: the gradient of a parameter.
struct array
{
  void* data = nullptr;
  element type = element::float32;
  update mode = update::store;

  constexpr array() noexcept = default;
  constexpr array(void* pointer, element kind, update how = update::store) noexcept
      : data{pointer}, type{kind}, mode{how}
  {
  }
  template <class T, element Kind = element_of<T>::value>
  constexpr array(T* pointer, update how = update::store) noexcept
      : data{pointer}, type{Kind}, mode{how}
  {
  }
  [[nodiscard]] MHAR_HOST_DEVICE constexpr explicit operator bool() const noexcept
  {
    return data != nullptr;
  }
};

//! A read-only [P, d] matrix of any element type: position p starts at data + p*position_stride.
struct const_matrix
{
  const void* data = nullptr;
  element type = element::float32;
  std::int64_t position_stride = 0;

  constexpr const_matrix() noexcept = default;
  constexpr const_matrix(const void* pointer, element kind, std::int64_t stride) noexcept
      : data{pointer}, type{kind}, position_stride{stride}
  {
  }
  template <class T, element Kind = element_of<T>::value>
  constexpr const_matrix(const T* pointer, std::int64_t stride) noexcept
      : data{pointer}, type{Kind}, position_stride{stride}
  {
  }
  [[nodiscard]] MHAR_HOST_DEVICE constexpr explicit operator bool() const noexcept
  {
    return data != nullptr;
  }
};

//! A writable [P, d] matrix of any element type.
struct matrix
{
  void* data = nullptr;
  element type = element::float32;
  std::int64_t position_stride = 0;
  update mode = update::store;

  constexpr matrix() noexcept = default;
  constexpr matrix(void* pointer, element kind, std::int64_t stride,
                   update how = update::store) noexcept
      : data{pointer}, type{kind}, position_stride{stride}, mode{how}
  {
  }
  template <class T, element Kind = element_of<T>::value>
  constexpr matrix(T* pointer, std::int64_t stride, update how = update::store) noexcept
      : data{pointer}, type{Kind}, position_stride{stride}, mode{how}
  {
  }
  [[nodiscard]] MHAR_HOST_DEVICE constexpr explicit operator bool() const noexcept
  {
    return data != nullptr;
  }
  [[nodiscard]] constexpr operator const_matrix() const noexcept
  {
    return {data, type, position_stride};
  }
};

//! The source rows of a call, element T.
//!
//! Strided: row n of position p starts at base + n*row_stride + p*position_stride; source-major [S, P, d] and token-major
//! [P, N, d] are both this. Listed: it starts at list[n] + p*position_stride; `list` is a host array, read when a verb is
//! called and not kept. A producer writes its output straight into its row: nothing is ever copied in.
template <class T>
struct const_rows
{
  const T* base = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t position_stride = 0;
  const T* const* list = nullptr;

  [[nodiscard]] constexpr explicit operator bool() const noexcept
  {
    return base != nullptr || list != nullptr;
  }
  //! Position 0 of row n; on the host only when listed.
  [[nodiscard]] MHAR_HOST_DEVICE constexpr const T* row(std::int64_t n) const noexcept
  {
    return list != nullptr ? list[n] : base + n * row_stride;
  }
  //! Row n of position p.
  [[nodiscard]] MHAR_HOST_DEVICE constexpr const T* at(std::int64_t n,
                                                       std::int64_t position) const noexcept
  {
    return row(n) + position * position_stride;
  }
};

//! Rows as written: the gradients of the source rows, of any element type, in the same three layouts.
//! The pointers are untyped: `type` has to say what they point to.
struct gradient_rows
{
  void* base = nullptr;
  element type = element::float32;
  std::int64_t row_stride = 0;
  std::int64_t position_stride = 0;
  void* const* list = nullptr;
  update mode = update::store;

  [[nodiscard]] constexpr explicit operator bool() const noexcept
  {
    return base != nullptr || list != nullptr;
  }
  //! Row n as a matrix, absent where there are none. In a list a null entry is a row whose gradient is not wanted.
  [[nodiscard]] constexpr matrix row(std::int64_t n) const noexcept
  {
    if (!*this) { return {}; }
    void* const start =
        list != nullptr ? list[n] : static_cast<char*>(base) + n * row_stride * size_of(type);
    return {start, type, position_stride, mode};
  }
};

//! Source-major rows [S, P, d], contiguous: the shared source buffer.
template <class T>
[[nodiscard]] constexpr const_rows<T> source_major(const T* base, std::int64_t num_positions,
                                                   std::int64_t width) noexcept
{
  return {base, num_positions * width, width, nullptr};
}

//! Token-major rows [P, N, d], contiguous.
template <class T>
[[nodiscard]] constexpr const_rows<T> token_major(const T* base, std::int64_t num_rows,
                                                  std::int64_t width) noexcept
{
  return {base, width, num_rows * width, nullptr};
}

//! Rows given one by one as a host array of pointers, each a [P, d] matrix.
template <class T>
[[nodiscard]] constexpr const_rows<T> row_list(const T* const* list,
                                               std::int64_t position_stride) noexcept
{
  return {nullptr, 0, position_stride, list};
}

MHAR_NAMESPACE_END
