// SPDX-License-Identifier: Apache-2.0
//! Lanes: 64 bytes of accumulators that are calculated with as one value, so that sums over the width have one order on every
//! machine (lane i takes the columns i, i + width, ...; lanes are then added in halves), however wide its registers are.
#pragma once

#include <mhar/types/element.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

#if defined(__GNUC__)
//! Count values as one; the compiler maps it to whatever registers there are. Passed by reference only: by value its
//! calling convention would depend on the target.
template <class Value, std::size_t Count>
struct packed
{
  // A typedef, because on an alias of a dependent type the attribute is ignored.
  typedef Value type __attribute__((vector_size(Count * sizeof(Value))));
};
#else
template <class Value, std::size_t Count>
struct packed
{
  struct type
  {
    Value values[Count];
    type& operator+=(const type& other) noexcept
    {
      for (std::size_t i = 0; i < Count; ++i) { values[i] += other.values[i]; }
      return *this;
    }
    [[nodiscard]] friend type operator*(type a, const type& b) noexcept
    {
      for (std::size_t i = 0; i < Count; ++i) { a.values[i] *= b.values[i]; }
      return a;
    }
    [[nodiscard]] friend type operator*(Value a, type b) noexcept
    {
      for (std::size_t i = 0; i < Count; ++i) { b.values[i] *= a; }
      return b;
    }
  };
};
#endif

template <class Accumulate>
inline constexpr std::size_t num_lanes = 64 / sizeof(Accumulate);

template <class Accumulate>
using lanes = typename packed<Accumulate, num_lanes<Accumulate>>::type;

//! \name How many lanes of a block exist: all, which the compiler knows, or the rest of a row.
//! @{
struct whole
{};
struct rest
{
  int count;
};
//! @}

//! Calls visit(k, whole) for every full block of lanes in [0, count), then visit(k, rest) for what remains.
template <class Accumulate, class Visit>
MHAR_FORCE_INLINE void for_each_block(std::int64_t count, const Visit& visit)
{
  constexpr auto step = static_cast<std::int64_t>(num_lanes<Accumulate>);
  std::int64_t k = 0;
  for (; k + step <= count; k += step) { visit(k, whole{}); }
  if (k < count) { visit(k, rest{static_cast<int>(count - k)}); }
}

//! Widens stored elements; missing lanes are 0.
template <class Accumulate, class T>
MHAR_FORCE_INLINE void load(lanes<Accumulate>& out, const T* from, whole) noexcept
{
  constexpr std::size_t count = num_lanes<Accumulate>;
#if defined(__GNUC__)
  if constexpr (std::is_same_v<T, Accumulate>) {
    std::memcpy(&out, from, sizeof(out));
    return;
  }
  else if constexpr (std::is_same_v<T, bfloat16> && std::is_same_v<Accumulate, float>) {
    typename packed<std::uint16_t, count>::type half;
    std::memcpy(&half, from, sizeof(half));
    const auto bits = __builtin_convertvector(half, typename packed<std::uint32_t, count>::type)
                      << 16;
    std::memcpy(&out, &bits, sizeof(out));
    return;
  }
#endif
  Accumulate values[count];
  for (std::size_t i = 0; i < count; ++i) { values[i] = widen<Accumulate>(from[i]); }
  std::memcpy(&out, values, sizeof(out));
}
template <class Accumulate, class T>
MHAR_FORCE_INLINE void load(lanes<Accumulate>& out, const T* from, rest part) noexcept
{
  T padded[num_lanes<Accumulate>] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(part.count) * sizeof(T));
  load<Accumulate>(out, padded, whole{});
}

//! Rounds into storage; missing lanes are left out.
template <class Accumulate, class T>
MHAR_FORCE_INLINE void store(T* to, const lanes<Accumulate>& from, whole) noexcept
{
  constexpr std::size_t count = num_lanes<Accumulate>;
  Accumulate values[count];
  std::memcpy(values, &from, sizeof(from));
  for (std::size_t i = 0; i < count; ++i) { to[i] = round_to<T>(values[i]); }
}
template <class Accumulate, class T>
MHAR_FORCE_INLINE void store(T* to, const lanes<Accumulate>& from, rest part) noexcept
{
  T padded[num_lanes<Accumulate>];
  store<Accumulate>(padded, from, whole{});
  std::memcpy(to, padded, static_cast<std::size_t>(part.count) * sizeof(T));
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

//! The sum of all lanes, added in halves.
template <class Accumulate, std::size_t Count = num_lanes<Accumulate>>
[[nodiscard]] MHAR_FORCE_INLINE Accumulate
total(const typename packed<Accumulate, Count>::type& values) noexcept
{
  if constexpr (Count == 1) {
    Accumulate only;
    std::memcpy(&only, &values, sizeof(only));
    return only;
  }
  else {
    using half = typename packed<Accumulate, Count / 2>::type;
    half low;
    half high;
    std::memcpy(&low, &values, sizeof(half));
    std::memcpy(&high, reinterpret_cast<const char*>(&values) + sizeof(half), sizeof(half));
    low += high;
    return total<Accumulate, Count / 2>(low);
  }
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
