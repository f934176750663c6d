// SPDX-License-Identifier: Apache-2.0
//! Shared memory of advance_tiles, as host and device see it.
#pragma once

#include <mhar/block/detail/tile_copy.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Byte offsets: queries (both parts), the sums of squares of new rows, then the teams' buffers,
//! each with the rows of a position, the states of its calls, inverse rms and lse.
template <int HeadWidth, class State>
struct advance_tiles_layout
{
  int low_queries;
  int squares;  //!< an exchange first, then [2][H + 1][positions]
  int buffers;
  int states;  //!< within a buffer
  int scalars;
  int buffer_bytes;
  int total;

  MHAR_HOST_DEVICE advance_tiles_layout(int num_calls, int num_rows, int num_heads, int positions,
                                        int num_buffers)
  {
    const int row_bytes = detail::tile_row_bytes<bfloat16, HeadWidth>;
    const int calls = (num_calls + 7) / 8 * 8;
    low_queries = calls * row_bytes;
    squares = 2 * low_queries;
    buffers = (squares + 16 + 2 * (num_heads + 1) * positions * 4 + 15) / 16 * 16;
    states = num_rows * row_bytes;
    scalars = states + num_calls * detail::tile_row_bytes<State, HeadWidth>;
    buffer_bytes = (scalars + (num_rows + num_calls) * 4 + 15) / 16 * 16;
    total = buffers + num_buffers * buffer_bytes;
  }
};

}  // namespace block
MHAR_NAMESPACE_END
