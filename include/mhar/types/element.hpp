// SPDX-License-Identifier: Apache-2.0
//! Element types of rows and parameters: two 16-bit storage types, their conversions, and the type arithmetic is done in.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#  include <cuda_bf16.h>
#  include <cuda_fp16.h>
#endif

MHAR_NAMESPACE_BEGIN

//! bfloat16 as stored: the upper half of a float. A storage type: it converts, it does not calculate.
//! Bit-compatible with __nv_bfloat16, Eigen::bfloat16 and torch's BFloat16: reinterpret_cast their pointers.
struct alignas(2) bfloat16
{
  std::uint16_t bits;
};

//! IEEE binary16 as stored. A storage type: it converts, it does not calculate.
//! Bit-compatible with __half, Eigen::half and torch's Half: reinterpret_cast their pointers.
struct alignas(2) float16
{
  std::uint16_t bits;
};

//! An element type as a value, for arrays whose type is known at run time only.
enum class element : std::uint8_t
{
  bfloat16,
  float16,
  float32,
  float64
};

//! Maps a C++ type to its `element`; undefined for every other type, so that a wrong pointer does not compile.
template <class T>
struct element_of;
template <>
struct element_of<bfloat16>
{
  static constexpr element value = element::bfloat16;
};
template <>
struct element_of<float16>
{
  static constexpr element value = element::float16;
};
template <>
struct element_of<float>
{
  static constexpr element value = element::float32;
};
template <>
struct element_of<double>
{
  static constexpr element value = element::float64;
};

//! Bytes of one element.
[[nodiscard]] MHAR_HOST_DEVICE constexpr int size_of(element type) noexcept
{
  return type == element::float64 ? 8 : type == element::float32 ? 4 : 2;
}

namespace detail {
template <class T, class = void>
struct is_element : std::false_type
{
};
template <class T>
struct is_element<T, std::void_t<decltype(element_of<T>::value)>> : std::true_type
{
};

template <class T>
struct accumulate
{
  static_assert(is_element<T>::value,
                "mhar: an element is bfloat16, float16, float or double; cast pointers to others");
  using type = float;
};
template <>
struct accumulate<double>
{
  using type = double;
};

//! The bits of one trivially copyable value as another of the same size (std::bit_cast is C++20).
template <class To, class From>
[[nodiscard]] MHAR_HOST_DEVICE inline To bit_cast(const From& from) noexcept
{
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}
}  // namespace detail

//! What arithmetic on rows of element T is done in: float, or double for double.
template <class T>
using accumulate_t = typename detail::accumulate<T>::type;

//! Widening conversions: exact.
[[nodiscard]] MHAR_HOST_DEVICE inline float to_float(bfloat16 value) noexcept
{
  return detail::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
[[nodiscard]] MHAR_HOST_DEVICE inline float to_float(float16 value) noexcept
{
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(value.bits));
#else
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  // Normal numbers: the exponent bias moves from 15 to 127.
  const std::uint32_t special =
      magnitude >= 0x0f800000u ? 0x7f800000u : 0u;  // infinity and NaN keep a full exponent
  const std::uint32_t normal = (magnitude + 0x38000000u) | special;
  // Subnormal ones: 2^-14 * (1 + m) - 2^-14 is exact, and never subnormal as a float: threads may read those as 0, as code
  // compiled with -ffast-math makes them do, and gradients of 1e-5 would be lost.
  const float subnormal =
      detail::bit_cast<float>(magnitude + 0x38800000u) - detail::bit_cast<float>(0x38800000u);
  const std::uint32_t bits =
      magnitude < 0x00800000u ? detail::bit_cast<std::uint32_t>(subnormal) : normal;
  return detail::bit_cast<float>(bits | sign);
#endif
}

namespace detail {
template <class T>
struct
    narrow;  // narrow<T>::from(float): round to nearest even, NaN stays NaN, overflow becomes infinity

template <>
struct narrow<bfloat16>
{
  [[nodiscard]] MHAR_HOST_DEVICE static bfloat16 from(float value) noexcept
  {
#if defined(__CUDA_ARCH__)
    return bfloat16{__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
    const auto bits = bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t quiet =
        (bits >> 16) | 0x40u;  // rounding could carry a NaN's payload into infinity
    return bfloat16{
        static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
#endif
  }
};

template <>
struct narrow<float16>
{
  [[nodiscard]] MHAR_HOST_DEVICE static float16 from(float value) noexcept
  {
#if defined(__CUDA_ARCH__)
    return float16{__half_as_ushort(__float2half_rn(value))};
#else
    const auto bits = bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    // Normal results: rebias the exponent by 112 and round 13 bits away; a carry may rightly reach infinity (65520).
    const std::uint32_t normal =
        (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Subnormal results: adding 0.5 lets the float adder round at 2^-24, the spacing of binary16 subnormals.
    const std::uint32_t subnormal =
        bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return float16{
        static_cast<std::uint16_t>((magnitude >= 0x477ff000u ? special : finite) | sign)};
#endif
  }
};

template <>
struct narrow<float>
{
  [[nodiscard]] MHAR_HOST_DEVICE static float from(float value) noexcept { return value; }
  [[nodiscard]] MHAR_HOST_DEVICE static float from(double value) noexcept
  {
    return static_cast<float>(value);
  }
};

template <>
struct narrow<double>
{
  [[nodiscard]] MHAR_HOST_DEVICE static double from(double value) noexcept { return value; }
};
}  // namespace detail

//! A stored element in the type that arithmetic is done in: `widen<float>(x)`.
template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE inline Accumulate widen(bfloat16 value) noexcept
{
  return static_cast<Accumulate>(to_float(value));
}
template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE inline Accumulate widen(float16 value) noexcept
{
  return static_cast<Accumulate>(to_float(value));
}
template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE inline Accumulate widen(float value) noexcept
{
  return static_cast<Accumulate>(value);
}
template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE inline Accumulate widen(double value) noexcept
{
  return static_cast<Accumulate>(value);
}

//! The one rounding at a store: to nearest even. A double bound for a 16-bit type is rounded to float first.
template <class T>
[[nodiscard]] MHAR_HOST_DEVICE inline T round_to(float value) noexcept
{
  return detail::narrow<T>::from(value);
}
template <class T>
[[nodiscard]] MHAR_HOST_DEVICE inline T round_to(double value) noexcept
{
  if constexpr (sizeof(T) == 2) { return detail::narrow<T>::from(static_cast<float>(value)); }
  else {
    return detail::narrow<T>::from(value);
  }
}

//! Element `index` of an array whose type is known at run time.
template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE inline Accumulate load(const void* data, element type,
                                                      std::int64_t index) noexcept
{
  switch (type) {
    case element::bfloat16: return widen<Accumulate>(static_cast<const bfloat16*>(data)[index]);
    case element::float16: return widen<Accumulate>(static_cast<const float16*>(data)[index]);
    case element::float32: return widen<Accumulate>(static_cast<const float*>(data)[index]);
    default: return widen<Accumulate>(static_cast<const double*>(data)[index]);
  }
}

//! Rounds `value` into element `index` of an array whose type is known at run time.
template <class Accumulate>
MHAR_HOST_DEVICE inline void store(void* data, element type, std::int64_t index,
                                   Accumulate value) noexcept
{
  switch (type) {
    case element::bfloat16: static_cast<bfloat16*>(data)[index] = round_to<bfloat16>(value); break;
    case element::float16: static_cast<float16*>(data)[index] = round_to<float16>(value); break;
    case element::float32: static_cast<float*>(data)[index] = round_to<float>(value); break;
    default: static_cast<double*>(data)[index] = static_cast<double>(value); break;
  }
}

MHAR_NAMESPACE_END
