// SPDX-License-Identifier: Apache-2.0
//! Shared memory of gather_tiles, as host and device see it.
#pragma once

#include <mhar/block/detail/packed_queries.cuh>
#include <mhar/block/detail/tile_copy.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Byte offsets. The block's: queries (all parts), barriers, the head sums that the cluster sends
//! [4][H][batch][members], the ring of factors, all chunks of a position together, and the head sum
//! of every position's finished row so far (when calls come in segments). Then slots, each all that
//! belongs to one position: gradients of the calls, rows, kept gradients (where results are put, too),
//! the finished row in float, the newest call's mix, lse and D of the calls, inverse rms and kept
//! head sums of the rows, and head sums of every chunk of calls.
template <class T, int HeadWidth, int MemberTiles, class State>
struct gather_tiles_layout
{
  static constexpr int head_width = HeadWidth;
  static constexpr int max_slots = 12;
  static constexpr int num_exchanges = 4;  //!< batches of positions whose head sums are under way
  static constexpr int max_batch = 4;      //!< positions
  static constexpr int max_groups = 8;     //!< positions whose factors are under way
  static constexpr int part_bytes = 512;   //!< of one part of a chunk's factors
  static constexpr int factor_bytes = 4 * part_bytes;
  static constexpr int members = 8 * MemberTiles;
  static constexpr int sent_bytes = max_batch * members * 4;  //!< of a head and batch
  static constexpr int row_bytes = detail::tile_row_bytes<T, HeadWidth>;
  static constexpr int state_bytes = detail::tile_row_bytes<State, HeadWidth>;

  static constexpr int query_parts = detail::packed_queries<T>::num_parts;

  int chunks;      //!< of 16 calls
  int num_groups;  //!< in the ring of factors
  int num_slots;
  int low_queries;
  int barriers;
  int sent_sums;
  int factors;
  int top_sums;
  int slots;

  int rows;  //!< within a slot; the calls' gradients are first
  int states;
  int top;
  int mix;
  int lse;
  int dot;
  int inverse;
  int kept_sums;
  int head_sums;
  int slot_bytes;
  int total;

  //! `num_positions` is that of the block when calls come in segments, and 0 otherwise.
  MHAR_HOST_DEVICE gather_tiles_layout(int num_calls, int num_rows, int num_heads, int slot_count,
                                       int num_positions)
      : chunks{(num_calls + 15) / 16},
        num_groups{chunks < max_groups ? max_groups / chunks : 1},
        num_slots{slot_count}
  {
    low_queries = chunks * 16 * row_bytes;
    barriers = query_parts * low_queries;
    sent_sums = barriers + (3 * max_slots + 2 * max_groups + num_exchanges) * 8;
    factors = (sent_sums + num_exchanges * num_heads * sent_bytes + 15) / 16 * 16;
    top_sums = factors + num_groups * chunks * factor_bytes;
    slots = top_sums + (num_positions * 4 + 15) / 16 * 16;

    rows = num_calls * row_bytes;
    states = rows + num_rows * row_bytes;
    top = states + members * state_bytes;
    mix = top + HeadWidth * 4;
    lse = mix + row_bytes;
    dot = lse + num_calls * 4;
    inverse = dot + num_calls * 4;
    kept_sums = inverse + 16 * 4;
    head_sums = kept_sums + 16 * 4;
    slot_bytes = (head_sums + chunks * 16 * 4 + 15) / 16 * 16;
    total = slots + num_slots * slot_bytes;
  }

  //! Positions that end at a time: two batches of them have slots.
  [[nodiscard]] MHAR_HOST_DEVICE int batch() const
  {
    return num_slots >= 2 * max_batch ? max_batch : num_slots >= max_batch ? max_batch / 2 : 1;
  }

  //! Of byte first + step of the top row.
  [[nodiscard]] MHAR_HOST_DEVICE int top_row(int first, int step) const
  {
    return rows + first + step;
  }

  //! The queries that the columns read: their high part, or the low one.
  [[nodiscard]] MHAR_HOST_DEVICE int column_queries(int part) const
  {
    return (query_parts - 2 + part) * low_queries;
  }
};

}  // namespace block
MHAR_NAMESPACE_END
