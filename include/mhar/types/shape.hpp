// SPDX-License-Identifier: Apache-2.0
//! The extents that every verb shares: positions, width, heads.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN

//! Extents of one routing call. Head h owns the columns [h*K, (h+1)*K) with K = width / num_heads.
//!
//! When the heads of a model are sharded over ranks, `width` and `num_heads` are this rank's share and `norm_width` is the
//! width d that the RMSNorm averages over; elsewhere leave `norm_width` at 0, which means `width`.
struct shape
{
  std::int64_t num_positions = 0;  //!< P = B*T, >= 0
  std::int64_t width = 0;          //!< d, >= 1
  int num_heads = 1;               //!< H, divides d
  std::int64_t norm_width = 0;     //!< the width of the norm when it is not `width`

  [[nodiscard]] MHAR_HOST_DEVICE constexpr std::int64_t head_width() const noexcept
  {
    return width / num_heads;
  }
  [[nodiscard]] MHAR_HOST_DEVICE constexpr std::int64_t full_width() const noexcept
  {
    return norm_width == 0 ? width : norm_width;
  }
};

MHAR_NAMESPACE_END
