// SPDX-License-Identifier: Apache-2.0
//! Lanes from memory and back, from and to every element type. The 16-bit conversions do to all lanes at once what those in
//! types/element.hpp do to one value; compilers do not find that by themselves.
#pragma once

#include <mhar/cpu/detail/lanes.hpp>
#include <mhar/types/view.hpp>

#include <type_traits>

#if defined(__AVX512F__) && !defined(__CUDACC__)
#  include <immintrin.h>
#endif

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! \name Asking for a cache line that will soon be read, or written; any address will do.
//! @{
MHAR_FORCE_INLINE void prefetch(const void* address) noexcept
{
#if defined(__GNUC__)
  __builtin_prefetch(address, 0, 2);
#else
  static_cast<void>(address);
#endif
}
MHAR_FORCE_INLINE void prefetch(void* address) noexcept
{
#if defined(__GNUC__)
  __builtin_prefetch(address, 1, 2);
#else
  static_cast<void>(address);
#endif
}
//! @}

#if defined(__GNUC__)
using half_bits = packed<std::uint16_t, 16>::type;
using float_bits = packed<std::uint32_t, 16>::type;

MHAR_FORCE_INLINE void widen_bits(float_bits& out, const void* from) noexcept
{
#  if defined(__AVX512F__) && !defined(__CUDACC__)
  // g++ 12 makes six instructions of the conversion below, and warns about the form without a mask.
  __m256i bits;
  std::memcpy(&bits, from, sizeof(bits));
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, bits);
  std::memcpy(&out, &wide, sizeof(out));
#  else
  half_bits bits;
  std::memcpy(&bits, from, sizeof(bits));
  out = __builtin_convertvector(bits, float_bits);
#  endif
}

MHAR_FORCE_INLINE void widen_lanes(lanes<float>& out, const bfloat16* from) noexcept
{
  float_bits bits;
  widen_bits(bits, from);
  bits <<= 16;
  std::memcpy(&out, &bits, sizeof(out));
}

MHAR_FORCE_INLINE void widen_lanes(lanes<float>& out, const float16* from) noexcept
{
  float_bits bits;
  widen_bits(bits, from);
  const float_bits magnitude = (bits & 0x7fffu) << 13;
  const float_bits sign = (bits & 0x8000u) << 16;
  lanes<float> scaled;
  std::memcpy(&scaled, &magnitude, sizeof(scaled));
  scaled = scaled * 0x1p112f;
  std::memcpy(&bits, &scaled, sizeof(bits));
  const float_bits special = magnitude >= 0x0f800000u ? float_bits{} + 0x7f800000u : float_bits{};
  bits = bits | special | sign;
  std::memcpy(&out, &bits, sizeof(out));
}

MHAR_FORCE_INLINE void narrow_bits(void* to, const float_bits& bits) noexcept
{
  const half_bits narrow = __builtin_convertvector(bits, half_bits);
  std::memcpy(to, &narrow, sizeof(narrow));
}

MHAR_FORCE_INLINE void narrow_lanes(bfloat16* to, const lanes<float>& from) noexcept
{
  float_bits bits;
  std::memcpy(&bits, &from, sizeof(bits));
  const float_bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const float_bits quiet = (bits >> 16) | 0x40u;
  narrow_bits(to, (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

MHAR_FORCE_INLINE void narrow_lanes(float16* to, const lanes<float>& from) noexcept
{
  float_bits bits;
  std::memcpy(&bits, &from, sizeof(bits));
  const float_bits sign = (bits >> 16) & 0x8000u;
  const float_bits magnitude = bits & 0x7fffffffu;
  const float_bits normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  lanes<float> shifted;
  std::memcpy(&shifted, &magnitude, sizeof(shifted));
  shifted = shifted + 0.5f;
  float_bits subnormal;
  std::memcpy(&subnormal, &shifted, sizeof(subnormal));
  subnormal -= 0x3f000000u;
  const float_bits finite = magnitude < 0x38800000u ? subnormal : normal;
  const float_bits special =
      magnitude > 0x7f800000u ? float_bits{} + 0x7e00u : float_bits{} + 0x7c00u;
  narrow_bits(to, (magnitude >= 0x477ff000u ? special : finite) | sign);
}
#endif

template <class Accumulate, class T>
inline constexpr bool converts_at_once =
#if defined(__GNUC__)
    std::is_same_v<Accumulate, float> && sizeof(T) == 2;
#else
    false;
#endif

//! Widens stored elements; missing lanes are 0.
template <class Accumulate, class T>
MHAR_FORCE_INLINE void load(lanes<Accumulate>& out, const T* from, whole) noexcept
{
  if constexpr (std::is_same_v<T, Accumulate>) { std::memcpy(&out, from, sizeof(out)); }
  else if constexpr (converts_at_once<Accumulate, T>) {
    widen_lanes(out, from);
  }
  else {
    constexpr std::size_t count = num_lanes<Accumulate>;
    Accumulate values[count];
    for (std::size_t i = 0; i < count; ++i) { values[i] = widen<Accumulate>(from[i]); }
    std::memcpy(&out, values, sizeof(out));
  }
}
template <class Accumulate, class T>
MHAR_FORCE_INLINE void load(lanes<Accumulate>& out, const T* from, rest part) noexcept
{
  T padded[num_lanes<Accumulate>] = {};
  std::memcpy(padded, from, part.count * sizeof(T));
  load<Accumulate>(out, padded, whole{});
}

//! Rounds into storage; missing lanes are left out.
template <class Accumulate, class T>
MHAR_FORCE_INLINE void store(T* to, const lanes<Accumulate>& from, whole) noexcept
{
  if constexpr (std::is_same_v<T, Accumulate>) { std::memcpy(to, &from, sizeof(from)); }
  else if constexpr (converts_at_once<Accumulate, T>) {
    narrow_lanes(to, from);
  }
  else {
    constexpr std::size_t count = num_lanes<Accumulate>;
    Accumulate values[count];
    std::memcpy(values, &from, sizeof(from));
    for (std::size_t i = 0; i < count; ++i) { to[i] = round_to<T>(values[i]); }
  }
}
template <class Accumulate, class T>
MHAR_FORCE_INLINE void store(T* to, const lanes<Accumulate>& from, rest part) noexcept
{
  T padded[num_lanes<Accumulate>];
  store<Accumulate>(padded, from, whole{});
  std::memcpy(to, padded, part.count * sizeof(T));
}

//! Stores or adds lanes, with one rounding.
template <update Mode, class Accumulate, class T, class Part>
MHAR_FORCE_INLINE void write_lanes(T* to, lanes<Accumulate>& values, Part part) noexcept
{
  if constexpr (Mode == update::accumulate) {
    if constexpr (std::is_same_v<T, double> && !std::is_same_v<Accumulate, double>) {
      // A double destination keeps what it holds: added in double whatever the accumulation type.
      Accumulate addends[num_lanes<Accumulate>];
      std::memcpy(addends, &values, sizeof(values));
      for (std::size_t i = 0; i < size(part, num_lanes<Accumulate>); ++i) {
        to[i] += static_cast<double>(addends[i]);
      }
      return;
    }
    else {
      lanes<Accumulate> old;
      load<Accumulate>(old, to, part);
      values += old;
    }
  }
  store<Accumulate>(to, values, part);
}

//! Rounds every lane to T's values.
template <class T, class Accumulate>
MHAR_FORCE_INLINE void round_lanes(lanes<Accumulate>& values) noexcept
{
  if constexpr (!std::is_same_v<T, Accumulate>) {
    T stored[num_lanes<Accumulate>];
    store<Accumulate>(stored, values, whole{});
    load<Accumulate>(values, stored, whole{});
  }
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
