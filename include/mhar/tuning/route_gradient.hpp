// SPDX-License-Identifier: Apache-2.0
//! Constants of the backward of a routing call, tuned on compute capability 9.0.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace tuning {

//! A chunk is 16 bytes of a row; a block's registers are shared by at most the threads said here.
struct route_gradient_policy
{
  int one_chunk_threads = 768;    //!< where threads hold one chunk of columns: 80 registers each
  int two_chunks_threads = 512;   //!< where they hold two: 128 registers each
  int direct_threads = 512;       //!< without a ring
  int two_chunks_from = 256;      //!< chunks of a row from which a thread takes two, if it can
  int listed_rows = 64;           //!< longest list of row pointers of the kernels with a ring
  int listed_rows_direct = 1024;  //!< of the others
  int direct_rows = 4;            //!< rows per batch without a ring
  int max_stages = 4;             //!< of the ring
  int max_rows_per_stage = 16;    //!< of the ring
  int min_rows_per_stage = 2;     //!< fewer rows per barrier cost more than one more block gains
  int scratch_blocks = 132;       //!< blocks whose scratch memory is too large for shared memory
  int portable_shared_bytes = 96 << 10;  //!< what a block has on every device
};

inline constexpr route_gradient_policy route_gradient{};

//! Blocks of `threads` that the registers of a multiprocessor hold, at most eight, where a thread holds `held` chunks. On all devices
//! each quarter of it has 16 Ki registers: for six warps of 80 a thread, or four of 128.
[[nodiscard]] constexpr int gradient_blocks(int threads, int held) noexcept
{
  const int blocks = 4 * (held == 1 ? 6 : 4) / ((threads + 31) / 32);
  return blocks < 1 ? 1 : blocks > 8 ? 8 : blocks;
}

//! Chunks of positions with a partial sum of their own: by the problem alone, so that parameter gradients
//! have the same bits on every device. One for each of the `blocks` that a multiprocessor of an H200 has at a time, so that no
//! block has two where others have one; about 15 positions make the writing of a chunk's sums cheap beside reading its rows.
[[nodiscard]] constexpr int gradient_chunks(std::int64_t num_positions, int blocks) noexcept
{
  constexpr std::int64_t unit = 132;
  const std::int64_t times = num_positions / (unit * 15);
  const std::int64_t most = unit * (times < 1 ? 1 : times > blocks ? blocks : times);
  return static_cast<int>(num_positions < most ? num_positions : most);
}

}  // namespace tuning
MHAR_NAMESPACE_END
