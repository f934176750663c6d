// SPDX-License-Identifier: Apache-2.0
//! Constants of the sweeps' passes on tensor cores (measured: docs/design/sweeps-on-the-gpu.md).
#pragma once

#include <mhar/config.hpp>

MHAR_NAMESPACE_BEGIN
namespace tuning {

struct sweep_policy
{
  //! Rows of a forward pass up to which they stay in registers, calls of a backward one up to which a
  //! warp serves eight positions. The number of members must not enter: a member's bits would depend
  //! on it.
  static constexpr int short_rows = 6;
  static constexpr int short_null_rows = 3;  //!< of one from null sources; advance_wide is next
  static constexpr int short_range = 6;
  static constexpr int max_gather_rows = 16;
  static constexpr int max_heads = 8;

  //! Warps of advance_tiles for 8*halves calls, as many as registers and the queries in shared memory
  //! leave room for, and slots of eight lines that each has on the way.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int advance_warps(int halves) noexcept
  {
    return halves == 1 ? 16 : 12;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int advance_slots(int head_width,
                                                                    int halves) noexcept
  {
    return head_width > 128 ? 4 : head_width > 64 ? 4 + halves : 8;
  }
  //! Blocks of advance_rows that a multiprocessor has registers for: rows and a state of `state_bytes`
  //! per element are held by 256 threads.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int advance_rows_blocks(int head_width, int rows,
                                                                          int state_bytes) noexcept
  {
    return (2 * rows + state_bytes) * head_width <= 1280 ? 2 : 1;
  }
  //! Positions of a block of advance_tiles; each costs shared memory when a row is new.
  static constexpr int max_positions_per_block = 64;
  //! Warps of gather_tiles that make factors.
  static constexpr int gather_score_warps = 4;
  //! Chunks of 16 calls that gather_tiles has registers for; and positions of a block, each with a
  //! number in shared memory, when there are more. Blocks have more positions where there would be more
  //! of them than chunks of partial sums.
  static constexpr int segment_chunks = 4;
  static constexpr int max_segmented_positions = 1024;
  //! Passes that gather_groups is faster at than gather_tiles. Both have the same bits, so the number of rows may decide.
  [[nodiscard]] static constexpr bool is_for_groups(int head_width, int num_calls, int num_rows,
                                                    bool kept) noexcept
  {
    if (head_width > 128) { return num_calls > 16 && num_rows > 8 && !kept; }
    return num_calls > (num_rows > 8 ? 16 : 32);
  }

  //! Clusters of `num_heads` blocks that a device runs at once, one block per multiprocessor. Where
  //! the parts of the chip hold no whole number of clusters, a tenth of it is out of reach.
  [[nodiscard]] static constexpr int num_clusters(int multiprocessors, int num_heads) noexcept
  {
    const int reached = num_heads == 1 ? multiprocessors : multiprocessors * 10 / 11;
    return reached < num_heads ? 1 : reached / num_heads;
  }
};

}  // namespace tuning
MHAR_NAMESPACE_END
