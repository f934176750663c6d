// SPDX-License-Identifier: Apache-2.0
//! Numbers of a float's range as operands of tensor cores beside rows of a 16-bit type: which powers
//! of two keep them exact enough.
#pragma once

#include <mhar/block/detail/element_pairs.cuh>
#include <mhar/block/detail/tensor_core.cuh>

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

//! The same of columns 2q + e of rows i and i + 8 of a product.
template <class T>
[[nodiscard]] __device__ __forceinline__ float join_parts(const float (&sum)[4], int e)
{
  return join_parts<T>(sum[e], sum[e + 2]);
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

//! Both parts of two columns of an 8 x 8 matrix, which is transposed.
template <class T>
struct transposed_parts
{
  std::uint32_t high;
  std::uint32_t low;

  __device__ __forceinline__ transposed_parts(float first, float second)
  {
    const std::uint32_t pair = make_pair<T>(first, second);
    high = transpose(pair);
    low = transpose(make_low_pair<T>(pair, first, second));
  }
};

//! sum += factors * row, parts of factors above each other; the row has eight columns.
template <class T>
__device__ __forceinline__ void multiply_factors(float (&sum)[4], std::uint32_t high,
                                                 std::uint32_t low, std::uint32_t row)
{
  const std::uint32_t wide = make_wide_pair<T>(row);
  multiply_add_8<bfloat16>(sum, high, low, wide);
  if constexpr (has_wide_rest<T>) {
    multiply_add_8<bfloat16>(sum, high, 0u, make_wide_rest(row, wide));
  }
}

//! sum += weights * gradients + factors * queries, both parts of each but of the gradients.
template <class T>
__device__ __forceinline__ void add_row_gradient(
    float (&sum)[4], const transposed_parts<T>& weights, const transposed_parts<bfloat16>& factors,
    std::uint32_t gradients, std::uint32_t high_queries, std::uint32_t low_queries)
{
  if constexpr (cuda::std::is_same_v<T, bfloat16>) {
    multiply_add_16<T>(sum, weights.high, weights.low, factors.high, factors.low, gradients,
                       high_queries);
  }
  else {
    multiply_add_8<T>(sum, weights.high, weights.low, gradients);
    multiply_add_8<bfloat16>(sum, factors.high, factors.low, high_queries);
  }
  multiply_add_8<bfloat16>(sum, factors.high, 0u, low_queries);
}

}  // namespace block::detail
MHAR_NAMESPACE_END
