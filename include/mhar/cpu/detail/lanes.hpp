// SPDX-License-Identifier: Apache-2.0
//! Lanes: 64 bytes of accumulators that are calculated with as one value, so that sums over the width have one order on every
//! machine (lane i takes the columns i, i + width, ...; lanes are then added in halves), however wide its registers are.
#pragma once

#include <mhar/types/element.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

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
    [[nodiscard]] friend type operator+(type a, const type& b) noexcept { return a += b; }
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

//! Sums of lanes that may be formed at once before they leave the registers. No result depends on it.
#if defined(__AVX512F__)
inline constexpr int most_sums = 8;
#else
inline constexpr int most_sums = 4;
#endif

//! \name How many lanes of a block exist: all, which the compiler knows, or the rest of a row.
//! @{
struct whole
{};
struct rest
{
  std::size_t count;
};
[[nodiscard]] constexpr std::size_t size(whole, std::size_t all) noexcept { return all; }
[[nodiscard]] constexpr std::size_t size(rest part, std::size_t) noexcept { return part.count; }
//! @}

//! Calls visit(k, whole) for every full block of lanes in [0, count), then visit(k, rest) for what remains.
template <class Accumulate, class Visit>
MHAR_FORCE_INLINE void for_each_block(std::int64_t count, const Visit& visit)
{
  constexpr auto step = static_cast<std::int64_t>(num_lanes<Accumulate>);
  std::int64_t k = 0;
  for (; k + step <= count; k += step) { visit(k, whole{}); }
  if (k < count) { visit(k, rest{static_cast<std::size_t>(count - k)}); }
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

#include <mhar/cpu/detail/lane_memory.hpp>
