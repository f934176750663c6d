// SPDX-License-Identifier: Apache-2.0
//! Shared memory of gather_groups, as host and device see it.
#pragma once

#include <mhar/block/detail/tile_copy.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Byte offsets. The block's: queries, the ring of factors, slots, barriers, the head sums that the cluster sends
//! [4][H][batch][members], and the head sum of every position's finished row so far (when calls come in segments). Slots, each all
//! that belongs to one position: gradients of the calls, rows, kept gradients (where results are put, too), the finished row in
//! float, the newest call's mix, lse and D of the calls, inverse rms and kept head sums of the rows, and head sums of every chunk
//! of calls.
//!
//! Queries, gradients and rows lie as a warpgroup's products read them: in tiles of 64 or 32 columns, in lines of 128 or 64 bytes
//! whose 16-byte vectors are permuted. What a copy of the calls brings ends a tile, and products of 64 columns read a tile too far
//! where heads have 160: what lies behind is theirs to read.
//!
//! Factors are 8 x 8 matrices of 8 calls and 8 rows, of every part [2][calls / 8].
template <class T, int HeadWidth, int Chunks>
struct gather_groups_layout
{
  static constexpr int head_width = HeadWidth;
  static constexpr int max_slots = 12;
  static constexpr int num_exchanges = 4;  //!< batches of positions whose head sums are under way
  static constexpr int max_batch = 2;      //!< positions
  static constexpr int max_groups = 6;     //!< positions whose factors are under way
  static constexpr int members = 16;
  static constexpr int sent_bytes = max_batch * members * 4;  //!< of a head and batch

  static constexpr int line_bytes = HeadWidth % 64 == 0 ? 128 : 64;
  static constexpr int line_vectors = line_bytes / 16;
  static constexpr int tiles = HeadWidth * 2 / line_bytes;
  static constexpr int tile_bytes = members * line_bytes;  //!< of rows, or of a chunk of calls
  static constexpr int call_tile = Chunks * tile_bytes;
  static constexpr int call_bytes = tiles * call_tile;
  static constexpr int state_bytes = detail::tile_row_bytes<T, HeadWidth>;

  static constexpr int matrix_bytes = 128;
  static constexpr int half_bytes =
      2 * Chunks * matrix_bytes;  //!< of a part: all calls, eight rows
  static constexpr int part_bytes = 2 * half_bytes;
  static constexpr int factor_bytes = 3 * part_bytes;
  static constexpr int num_groups = Chunks == 2 ? 6 : 4;

  static constexpr int factors = call_bytes;  //!< behind the queries
  static constexpr int slots = (factors + num_groups * factor_bytes + 1023) / 1024 * 1024;
  static constexpr int rows = call_bytes;  //!< within a slot; the calls' gradients are first
  static constexpr int states = rows + tiles * tile_bytes;
  static constexpr int top = states + members * state_bytes;
  static constexpr int mix = top + HeadWidth * 4;
  static constexpr int lse = mix + HeadWidth * 2;
  static constexpr int dot = lse + Chunks * 16 * 4;
  static constexpr int inverse = dot + Chunks * 16 * 4;
  static constexpr int kept_sums = inverse + members * 4;
  static constexpr int head_sums = kept_sums + members * 4;
  static constexpr int slot_bytes = (head_sums + Chunks * 16 * 4 + 1023) / 1024 * 1024;

  int num_slots;
  int barriers;
  int sent_sums;
  int top_sums;
  int total;

  //! `num_positions` is that of the block when calls come in segments, and 0 otherwise.
  MHAR_HOST_DEVICE gather_groups_layout(int num_heads, int slot_count, int num_positions)
      : num_slots{slot_count}
  {
    barriers = slots + num_slots * slot_bytes;
    sent_sums = barriers + (3 * max_slots + 2 * max_groups + num_exchanges) * 8;
    top_sums = (sent_sums + num_exchanges * num_heads * sent_bytes + 15) / 16 * 16;
    total = top_sums + (num_positions * 4 + 15) / 16 * 16;
  }

  //! Positions that end at a time: two batches of them have slots.
  [[nodiscard]] MHAR_HOST_DEVICE int batch() const
  {
    return num_slots >= 2 * max_batch ? max_batch : 1;
  }

  //! A vector of a line's first tile.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int vector_place(int line, int vector)
  {
    return line * line_bytes + ((vector ^ key(line)) << 4);
  }
  //! Any vector of a line; tiles are `tile` bytes apart.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int vector_place(int line, int vector, int tile)
  {
    return vector / line_vectors * tile + vector_place(line, vector % line_vectors);
  }
  //! From the place of vector v to that of v + step, where that is v ^ step within a line.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::uint32_t after_vectors(std::uint32_t place,
                                                                              int step, int tile)
  {
    return (place ^ static_cast<std::uint32_t>(step % line_vectors << 4)) +
           static_cast<std::uint32_t>(step / line_vectors * tile);
  }
  //! From the place of a vector of line i to that of line i + step, where that is i ^ step within eight lines.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::uint32_t after_lines(std::uint32_t place,
                                                                            int step)
  {
    return (place ^ static_cast<std::uint32_t>(key(step) << 4)) +
           static_cast<std::uint32_t>(step * line_bytes);
  }
  //! Of byte first + step of the top row, which is line 0.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int top_row(int first, int step)
  {
    return rows + (first + step) / line_bytes * tile_bytes + (first + step) % line_bytes;
  }

private:
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int key(int line)
  {
    return line_vectors == 8 ? line % 8 : line / 2 % 4;
  }
};

}  // namespace block
MHAR_NAMESPACE_END
