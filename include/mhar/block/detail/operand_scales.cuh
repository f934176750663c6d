// SPDX-License-Identifier: Apache-2.0
//! Numbers of a float's range as operands of tensor cores beside rows of a 16-bit type: which powers
//! of two keep them exact enough.
#pragma once

#include <mhar/block/detail/element_pairs.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! bfloat16 has a float's range: its parts need no scale. float16 ends at 65504, and below 6e-5 its
//! spacing is 2^-24. Both operands of a product have one type, so what meets a row of float16 is
//! float16, too:
//!   queries          times `query`; low parts times `low` besides, in sums of their own
//!   weights forward  relative to a reference that is 2^`shift` below a logit; where they add up to
//!                    1, times `mix`
//!   weights backward times `weight`, as are all sums for a row's gradient
//! Factors of rows and queries, r*dl, have no range that would be known beforehand. They stay
//! bfloat16, and so do the queries that they meet; rows that they meet are split.
template <class T>
struct operand_scales
{
  static constexpr float query = 1;
  static constexpr float low = 1;
  static constexpr float shift = 0;
  static constexpr float mix = 1;
  static constexpr float weight = 1;
};
template <>
struct operand_scales<float16>
{
  static constexpr float query = 0x1p-8f;
  static constexpr float low = 0x1p11f;
  static constexpr float shift = 7;
  static constexpr float mix = 0x1p15f;
  static constexpr float weight = 0x1p6f;
};

//! <w, s> from the sums over both parts of the queries.
template <class T>
[[nodiscard]] __device__ __forceinline__ float join_parts(float high, float low)
{
  using scales = operand_scales<T>;
  if constexpr (scales::low == 1) { return high + low; }
  else {
    return fmaf(low, 1 / (scales::query * scales::low), high * (1 / scales::query));
  }
}

//! Two elements of a row as products with factors read them: the high part, or all of bfloat16.
template <class T>
[[nodiscard]] __device__ __forceinline__ std::uint32_t make_wide_pair(std::uint32_t pair)
{
  if constexpr (cuda::std::is_same_v<T, bfloat16>) { return pair; }
  else {
    return make_pair<bfloat16>(first_of<T>(pair), second_of<T>(pair));
  }
}
//! What is left over: with it, the 11 bits of float16 are complete.
template <class T>
inline constexpr bool has_wide_rest = cuda::std::is_same_v<T, float16>;
[[nodiscard]] __device__ __forceinline__ std::uint32_t make_wide_rest(std::uint32_t pair,
                                                                      std::uint32_t high)
{
  return make_low_pair<bfloat16>(high, first_of<float16>(pair), second_of<float16>(pair));
}

}  // namespace block::detail
MHAR_NAMESPACE_END
