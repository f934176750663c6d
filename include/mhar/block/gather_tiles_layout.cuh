// SPDX-License-Identifier: Apache-2.0
//! Shared memory of gather_tiles, as host and device see it.
#pragma once

#include <mhar/block/detail/tile_copy.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Byte offsets. The block's: queries (both parts), gates, two exchanges, the head sums sent by the
//! cluster [2][H][teams*rows], factors of dw [2 parts][pairs][calls], and where a pair's row lies.
//! A team's: two sets of rows, of the newest call's mix and of scalars (lse, D, inverse rms, head
//! sums), the kept gradients (two sets when they are read, else one), and two chunks of calls.
template <int HeadWidth, class State>
struct gather_tiles_layout
{
  int calls;          //!< rounded up to 16
  int pairs;          //!< of a round, rounded up to 16
  int factor_stride;  //!< elements between pairs
  int low_queries;
  int gates;
  int exchanges;
  int head_sums;
  int factors;
  int row_places;
  int teams;

  int row_set;  //!< bytes of one set
  int state_set;
  int scalar_set;
  int chunk;
  int mixes;  //!< within a team; the rows are first
  int states;
  int scalars;
  int chunks;
  int team_bytes;
  int total;

  MHAR_HOST_DEVICE gather_tiles_layout(int num_calls, int num_rows, int num_heads, int num_teams,
                                       bool kept)
  {
    const int row_bytes = detail::tile_row_bytes<bfloat16, HeadWidth>;
    calls = (num_calls + 15) / 16 * 16;
    pairs = (num_teams * num_rows + 15) / 16 * 16;
    factor_stride = calls + 8;
    low_queries = calls * row_bytes;
    gates = 2 * low_queries;
    exchanges = (gates + 2 * calls * 4 + 15) / 16 * 16;
    head_sums = exchanges + 16;
    factors = (head_sums + 2 * num_heads * num_teams * num_rows * 4 + 15) / 16 * 16;
    row_places = factors + 2 * pairs * factor_stride * 2;
    teams = (row_places + pairs * 4 + 15) / 16 * 16;

    row_set = num_rows * row_bytes;
    state_set = num_rows * detail::tile_row_bytes<State, HeadWidth>;
    scalar_set = (2 * (num_calls + num_rows) * 4 + 15) / 16 * 16;
    chunk = (num_calls < 16 ? num_calls : 16) * row_bytes;
    mixes = 2 * row_set;
    states = mixes + 2 * row_bytes;
    scalars = states + (kept ? 2 : 1) * state_set;
    chunks = scalars + 2 * scalar_set;
    team_bytes = (chunks + 2 * chunk + 15) / 16 * 16;
    total = teams + num_teams * team_bytes;
  }
};

}  // namespace block
MHAR_NAMESPACE_END
