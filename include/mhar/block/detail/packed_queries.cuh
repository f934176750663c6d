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

//! Three arrays one after the other:
//!   high    [S, d]               w rounded
//!   low     [S, d]               w - high rounded; |w - high - low| < 2^-17 |w|
//!   image   [S, H, K/16, 4] x 8  both parts in the order in which the lanes of a warp hold the
//! first operand of m16n8k16: lane 4*call + q of step 2u + v reads columns 32u + 8q + 4v ... + 3 of
//! its call as one 16-byte vector (high 0 1, low 0 1, high 2 3, low 2 3).
template <>
struct packed_queries<bfloat16>
{
  static constexpr bool exists = true;

  bfloat16* high = nullptr;
  bfloat16* low = nullptr;
  bfloat16* image = nullptr;
  std::int64_t width = 0;
  std::int64_t head_width = 0;

  packed_queries() = default;
  MHAR_HOST_DEVICE packed_queries(void* memory, int num_calls, const shape& extent) noexcept
      : high{static_cast<bfloat16*>(memory)},
        low{high + num_calls * extent.width},
        image{low + num_calls * extent.width},
        width{extent.width},
        head_width{extent.head_width()}
  {
  }

  //! Only widths that the vectors of the image divide have one.
  [[nodiscard]] static constexpr std::size_t bytes(const shape& extent, int num_calls) noexcept
  {
    return extent.head_width() % 32 != 0
               ? 0
               : static_cast<std::size_t>(8 * extent.width) * static_cast<std::size_t>(num_calls);
  }

  //! Places column k of a call's query.
  MHAR_HOST_DEVICE void write(int call, std::int64_t k, float value) const noexcept
  {
    const bfloat16 upper = round_to<bfloat16>(value);
    const bfloat16 lower = round_to<bfloat16>(value - to_float(upper));
    high[call * width + k] = upper;
    low[call * width + k] = lower;
    const std::int64_t group = k / 32 * 2 + k % 8 / 4;  // the step, counted over all heads
    const std::int64_t vector = (call * (width / 16) + group) * 4 + k % 32 / 8;
    bfloat16* const place = image + vector * 8 + k % 4 / 2 * 4 + k % 2;
    place[0] = upper;
    place[2] = lower;
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
