// SPDX-License-Identifier: Apache-2.0
//! A tile of bfloat16 lines in shared memory whose 16-byte vectors are permuted within each line, so
//! that neither eight lines of one vector nor four vectors of two lines meet in a bank.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Vector v of line i lies at vector v ^ key(i), the same for line i + 8. Lines are a multiple of 64 bytes long. Where they
//! are a multiple of 128, the parity of a line has to choose the half of the banks, too.
template <int HeadWidth>
struct swizzled_tile
{
  static_assert(HeadWidth % 32 == 0, "lines hold whole groups of four vectors");
  static constexpr int line_bytes = HeadWidth * 2;
  static constexpr int groups = HeadWidth / 32;
  static constexpr bool wide = line_bytes % 128 == 0;
  //! Vectors between two that a lane reaches by an offset known to the compiler.
  static constexpr int period = wide ? 8 : 4;

  [[nodiscard]] __device__ __forceinline__ static int key(int line)
  {
    return wide ? (line >> 1 & 3) | (line & 1) << 2 : line >> 1 & 3;
  }
  //! Byte offset of a vector with 0 <= vector < period, line < 8.
  [[nodiscard]] __device__ __forceinline__ static int offset(int line, int vector)
  {
    return line * line_bytes + ((vector ^ key(line)) << 4);
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
