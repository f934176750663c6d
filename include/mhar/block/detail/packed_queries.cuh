// SPDX-License-Identifier: Apache-2.0
//! The folded queries in the form that tensor cores read: two bfloat16 parts that add up to nearly
//! a float.
#pragma once

#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Which rows have a packed form.
template <class T>
struct packed_queries
{
  static constexpr bool exists = false;
  [[nodiscard]] static constexpr std::size_t bytes(const shape&, int) noexcept { return 0; }
};

//! Per call, one after the other:
//!   high    [d]             w rounded
//!   low     [d]             w - high rounded; |w - high - low| < 2^-17 |w|
//!   image   [H, K/16, 4][8] both parts in the order in which the lanes of a warp hold the first
//! operand of m16n8k16: lane 4*call + q of step 2u + v reads columns 32u + 8q + 4v ... + 3 of its
//! call as one 16-byte vector (high 0 1, low 0 1, high 2 3, low 2 3).
template <>
struct packed_queries<bfloat16>
{
  static constexpr bool exists = true;

  bfloat16* memory = nullptr;
  std::int64_t width = 0;

  packed_queries() = default;
  MHAR_HOST_DEVICE packed_queries(void* packed, std::int64_t row_width) noexcept
      : memory{static_cast<bfloat16*>(packed)}, width{row_width}
  {
  }

  //! Only heads that the vectors of the image divide have one.
  [[nodiscard]] static constexpr std::size_t bytes(const shape& extent, int num_calls) noexcept
  {
    return extent.head_width() % 32 != 0
               ? 0
               : static_cast<std::size_t>(8 * extent.width) * static_cast<std::size_t>(num_calls);
  }

  [[nodiscard]] MHAR_HOST_DEVICE bfloat16* high(std::int64_t call) const noexcept
  {
    return memory + call * 4 * width;
  }
  [[nodiscard]] MHAR_HOST_DEVICE bfloat16* low(std::int64_t call) const noexcept
  {
    return high(call) + width;
  }
  [[nodiscard]] MHAR_HOST_DEVICE bfloat16* image(std::int64_t call) const noexcept
  {
    return high(call) + 2 * width;
  }

  //! Places column k of a call's query.
  MHAR_HOST_DEVICE void write(int call, std::int64_t k, float value) const noexcept
  {
    const bfloat16 upper = round_to<bfloat16>(value);
    const bfloat16 lower = round_to<bfloat16>(value - to_float(upper));
    high(call)[k] = upper;
    low(call)[k] = lower;
    const std::int64_t step = k / 32 * 2 + k % 8 / 4;  // counted over all heads
    const std::int64_t vector = step * 4 + k % 32 / 8;
    bfloat16* const place = image(call) + vector * 8 + k % 4 / 2 * 4 + k % 2;
    place[0] = upper;
    place[2] = lower;
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
