// SPDX-License-Identifier: Apache-2.0
//! What advance_tiles copies before the kernels in front have ended.
#pragma once

#include <mhar/block/advance_tiles.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Before the kernels in front have ended, beside a new row: kept states and old rows of the first
//! unit. They were complete when the pass began to which the last old row was new, and nothing
//! behind that pass begins before.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::copy_old_rows()
{
  if (next_.position >= count_) { return; }
#pragma unroll 1
  for (; num_early_ < Slots && next_line_ + 8 <= pass_.num_rows - 2; ++num_early_) {
    copy_next<false>(num_early_);
  }
}

//! Their numbers, after the wait. Together they are the first group; the others are empty.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::complete_old_rows() const
{
#pragma unroll 1
  for (int slot = 0; slot < num_early_; ++slot) {
    const int line = first_line() + 8 * slot;
    if (line < 0) { copy_lse(slot, line + 8 * Halves); }
    else if (lane_ < 8) {
      detail::copy_async_4(
          scalars(slot) + lane_,
          pass_.inverse_rms + (line + lane_) * pass_.num_positions + first_ + next_.position);
    }
  }
#pragma unroll 1
  for (int slot = 0; slot < num_early_; ++slot) { detail::end_copy_group(); }
}

}  // namespace block
MHAR_NAMESPACE_END
