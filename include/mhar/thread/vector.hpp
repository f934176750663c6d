// SPDX-License-Identifier: Apache-2.0
//! A few consecutive elements that move as one access, and their widening to the type arithmetic is done in.
#pragma once

#include <mhar/types/element.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

MHAR_NAMESPACE_BEGIN
namespace thread {

//! Elements of one 16-byte access: the width of a chunk, the unit of every sum over the width.
template <class T>
inline constexpr int chunk_width = 16 / static_cast<int>(sizeof(T));

//! `Count` consecutive elements, a power of two, aligned to their size together (at most 16 bytes).
template <class T, int Count = chunk_width<T>>
struct alignas(sizeof(T) * Count < 16 ? sizeof(T) * Count : 16) vector
{
  T lanes[static_cast<std::size_t>(Count)];

  [[nodiscard]] MHAR_HOST_DEVICE constexpr T& operator[](int i) noexcept { return lanes[i]; }
  [[nodiscard]] MHAR_HOST_DEVICE constexpr const T& operator[](int i) const noexcept
  {
    return lanes[i];
  }
};

//! Whether an address can be accessed in units of `bytes`, a power of two.
[[nodiscard]] MHAR_HOST_DEVICE inline bool is_aligned(const void* address, int bytes) noexcept
{
  return (reinterpret_cast<std::uintptr_t>(address) & static_cast<std::uintptr_t>(bytes - 1)) == 0;
}

//! One access for the whole vector of at most 16 bytes; `from` is aligned to its size.
template <class T, int Count = chunk_width<T>>
[[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE vector<T, Count> load_vector(
    const T* from) noexcept
{
#if defined(__CUDA_ARCH__)
  // Copying the struct would be compiled element by element, and a cast of the memory itself byte by byte.
  if constexpr (sizeof(T) * Count == 16) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    return detail::bit_cast<vector<T, Count>>(bits);
  }
  else if constexpr (sizeof(T) * Count == 8) {
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    return detail::bit_cast<vector<T, Count>>(bits);
  }
  else if constexpr (sizeof(T) * Count == 4) {
    const std::uint32_t bits = *reinterpret_cast<const std::uint32_t*>(from);
    return detail::bit_cast<vector<T, Count>>(bits);
  }
#endif
  vector<T, Count> result;
  memcpy(&result, from, sizeof(result));
  return result;
}

//! One access for the whole vector; `to` is aligned to its size.
template <class T, int Count>
MHAR_HOST_DEVICE MHAR_FORCE_INLINE void store_vector(T* to, const vector<T, Count>& value) noexcept
{
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) * Count == 16) {
    *reinterpret_cast<uint4*>(to) = detail::bit_cast<uint4>(value);
    return;
  }
  else if constexpr (sizeof(T) * Count == 8) {
    *reinterpret_cast<uint2*>(to) = detail::bit_cast<uint2>(value);
    return;
  }
  else if constexpr (sizeof(T) * Count == 4) {
    // Left to memcpy, nvcc 13.0 stores single bytes, and the low ones of halves rounded from double come out wrong.
    *reinterpret_cast<std::uint32_t*>(to) = detail::bit_cast<std::uint32_t>(value);
    return;
  }
#endif
  memcpy(to, &value, sizeof(value));
}

//! The first `count` elements, one access each, for addresses of any alignment; the others are zero.
template <class T, int Count = chunk_width<T>>
[[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE vector<T, Count> load_elements(const T* from,
                                                                                int count) noexcept
{
  vector<T, Count> result{};
  for (int i = 0; i < Count; ++i) {
    if (i < count) { result[i] = from[i]; }
  }
  return result;
}

template <class T, int Count>
MHAR_HOST_DEVICE MHAR_FORCE_INLINE void store_elements(T* to, const vector<T, Count>& value,
                                                       int count) noexcept
{
  for (int i = 0; i < Count; ++i) {
    if (i < count) { to[i] = value[i]; }
  }
}

template <class Accumulate, class T, int Count>
[[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE vector<Accumulate, Count> widen_all(
    const vector<T, Count>& value) noexcept
{
  vector<Accumulate, Count> result;
#if defined(__CUDA_ARCH__)
  constexpr bool in_pairs = std::is_same_v<T, bfloat16> && Count % 2 == 0;
#else
  constexpr bool in_pairs = false;
#endif
  if constexpr (in_pairs) {
    // One instruction each, where taking the upper one out of its word first would need two.
    for (int i = 0; i < Count; i += 2) {
      const auto both = detail::bit_cast<std::uint32_t>(vector<T, 2>{value[i], value[i + 1]});
      result[i] = static_cast<Accumulate>(detail::bit_cast<float>(both << 16));
      result[i + 1] = static_cast<Accumulate>(detail::bit_cast<float>(both & 0xffff0000u));
    }
  }
  else {
    for (int i = 0; i < Count; ++i) { result[i] = widen<Accumulate>(value[i]); }
  }
  return result;
}

template <class T, class Accumulate, int Count>
[[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE vector<T, Count> round_all(
    const vector<Accumulate, Count>& value) noexcept
{
  vector<T, Count> result;
  for (int i = 0; i < Count; ++i) { result[i] = round_to<T>(value[i]); }
  return result;
}

}  // namespace thread
MHAR_NAMESPACE_END
