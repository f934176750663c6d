// SPDX-License-Identifier: Apache-2.0
//! The folded queries in the form that tensor cores read: two 16-bit parts that add up to nearly a
//! float.
#pragma once

#include <mhar/block/detail/operand_scales.cuh>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Per call, one after the other:
//!   high    [d]             w rounded
//!   low     [d]             w - high rounded; |w - high - low| < 2^-17 |w|
//!   image   [H, K/16, 4][8] both parts in the order in which the lanes of a warp hold the first
//! operand of m16n8k16: lane 4*call + q of step 2u + v reads columns 32u + 8q + 4v ... + 3 of its
//! call as one 16-byte vector (high 0 1, low 0 1, high 2 3, low 2 3).
//!
//! Of float16 rows these three are scaled as operand_scales says, and two more follow, for products
//! with factors: high and low as bfloat16.
template <class T>
struct packed_queries
{
  //! Which rows have a packed form.
  static constexpr bool exists = sizeof(T) == 2;
  //! Of [d] each, but for the image.
  static constexpr int num_parts = has_wide_rest<T> ? 4 : 2;

  T* memory = nullptr;
  std::int64_t width = 0;

  packed_queries() = default;
  MHAR_HOST_DEVICE packed_queries(void* packed, std::int64_t row_width) noexcept
      : memory{static_cast<T*>(packed)}, width{row_width}
  {
  }

  //! Only heads that the vectors of the image divide have one.
  [[nodiscard]] static constexpr std::size_t bytes(const shape& extent, int num_calls) noexcept
  {
    return !exists || extent.head_width() % 32 != 0
               ? 0
               : static_cast<std::size_t>((num_parts + 2) * 2 * extent.width) *
                     static_cast<std::size_t>(num_calls);
  }

  [[nodiscard]] MHAR_HOST_DEVICE T* image(std::int64_t call) const noexcept
  {
    return part(0, call) + 2 * width;
  }
  //! High (0), low (1), or the bits of both as bfloat16 (2, 3).
  [[nodiscard]] MHAR_HOST_DEVICE T* part(int index, std::int64_t call) const noexcept
  {
    return memory + call * (num_parts + 2) * width + (index < 2 ? index : index + 2) * width;
  }

  //! Places column k of a call's query.
  MHAR_HOST_DEVICE void write(int call, std::int64_t k, float value) const noexcept
  {
    using scales = operand_scales<T>;
    const float scaled = scales::query * value;
    const T upper = round_to<T>(scaled);
    const T lower = round_to<T>((scaled - to_float(upper)) * scales::low);
    part(0, call)[k] = upper;
    part(1, call)[k] = lower;
    const std::int64_t step = k / 32 * 2 + k % 8 / 4;  // counted over all heads
    const std::int64_t vector = step * 4 + k % 32 / 8;
    T* const place = image(call) + vector * 8 + k % 4 / 2 * 4 + k % 2;
    place[0] = upper;
    place[2] = lower;
    if constexpr (num_parts == 4) {
      const auto high = round_to<bfloat16>(value);
      reinterpret_cast<bfloat16*>(part(2, call))[k] = high;
      reinterpret_cast<bfloat16*>(part(3, call))[k] = round_to<bfloat16>(value - to_float(high));
    }
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
