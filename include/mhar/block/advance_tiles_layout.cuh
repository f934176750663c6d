// SPDX-License-Identifier: Apache-2.0
//! Shared memory of advance_tiles, as host and device see it.
#pragma once

#include <mhar/block/detail/call_ending.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Every warp has a ring of slots. A slot is eight lines of one head, lines being rows or the states
//! of calls, and one number per line: its inverse rms or its lse. Behind the rings lie the packed
//! queries, the sums of squares of new rows, [2][positions][heads], and their inverse rms,
//! [positions]. Where the first call has an ending, places for its mixes of a few positions follow,
//! with the lse of each, two counters per place, and how it ends.
template <class T, int HeadWidth>
struct advance_tiles_layout
{
  static constexpr int lines_bytes = 8 * HeadWidth * 2;
  static constexpr int slot_bytes = lines_bytes + 32;

  int queries;
  int squares;
  int inverse_rms;
  int found;
  int num_places;
  int mixes;
  int lse;
  int counters;
  int ending;
  int total;

  MHAR_HOST_DEVICE advance_tiles_layout(int num_warps, int num_slots, int num_calls, int num_heads,
                                        int positions, bool has_ending)
  {
    queries = (num_warps * num_slots * slot_bytes + 127) / 128 * 128;
    squares = queries + num_calls * num_heads * HeadWidth * 4;
    inverse_rms = squares + 2 * positions * num_heads * 4;
    found = (inverse_rms + positions * 4 + 7) / 8 * 8;
    mixes = (found + 8 + 15) / 16 * 16;
    // One more than the warps are at a time.
    num_places = has_ending ? (num_warps + num_heads - 1) / num_heads + 1 : 0;
    lse = mixes + num_places * num_heads * HeadWidth * 4;
    counters = lse + num_places * num_heads * 4;
    ending = (counters + num_places * 8 + 7) / 8 * 8;
    total = ending + (has_ending ? static_cast<int>(sizeof(detail::call_ending<T>)) : 0);
  }
};

}  // namespace block
MHAR_NAMESPACE_END
