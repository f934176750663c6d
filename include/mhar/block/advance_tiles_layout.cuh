// SPDX-License-Identifier: Apache-2.0
//! Shared memory of advance_tiles, as host and device see it.
#pragma once

#include <mhar/config.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Every warp has a ring of slots. A slot is eight lines of one head, lines being rows or the states
//! of calls, and one number per line: its inverse rms or its lse. Behind the rings lie the packed
//! queries, the sums of squares of new rows, [2][positions][heads], and their inverse rms,
//! [positions].
template <int HeadWidth>
struct advance_tiles_layout
{
  static constexpr int lines_bytes = 8 * HeadWidth * 2;
  static constexpr int slot_bytes = lines_bytes + 32;

  int queries;
  int squares;
  int inverse_rms;
  int total;

  MHAR_HOST_DEVICE advance_tiles_layout(int num_warps, int num_slots, int num_calls, int num_heads,
                                        int positions)
  {
    queries = (num_warps * num_slots * slot_bytes + 127) / 128 * 128;
    squares = queries + num_calls * num_heads * HeadWidth * 4;
    inverse_rms = squares + 2 * positions * num_heads * 4;
    total = inverse_rms + positions * 4;
  }
};

}  // namespace block
MHAR_NAMESPACE_END
