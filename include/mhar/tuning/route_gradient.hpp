// SPDX-License-Identifier: Apache-2.0
//! Constants of the backward of a routing call, tuned on compute capability 9.0.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace tuning {

struct route_gradient_policy
{
  int max_threads = 512;          //!< of a block: 128 registers each
  int listed_rows = 64;           //!< longest list of row pointers of the kernels with a ring
  int listed_rows_direct = 1024;  //!< of the others
  int direct_rows = 4;            //!< rows per batch without a ring
  int max_stages = 4;             //!< of the ring
  int two_chunks_from = 256;      //!< chunks of a row from which a thread takes two of them
  int max_rows_per_stage = 16;
  int min_rows_per_stage = 3;  //!< fewer rows per barrier cost more than a stage gains
  std::int64_t scratch_blocks =
      132;  //!< blocks whose scratch memory is too large for shared memory
  std::int64_t portable_shared_bytes = 96 << 10;  //!< what a block has on every device
};

inline constexpr route_gradient_policy route_gradient{};

//! Chunks of positions with a partial sum of their own: by the number of positions alone, so that parameter gradients have the
//! same bits on every device. Multiples of 132 divide evenly over the multiprocessors of an H200; about 15 positions make the
//! writing of a chunk's sums cheap beside reading its rows.
[[nodiscard]] constexpr int gradient_chunks(std::int64_t num_positions) noexcept
{
  constexpr std::int64_t unit = 132;
  const std::int64_t times = num_positions / (unit * 15);
  const std::int64_t most = unit * (times < 1 ? 1 : times > 8 ? 8 : times);
  return static_cast<int>(num_positions < most ? num_positions : most);
}

}  // namespace tuning
MHAR_NAMESPACE_END
