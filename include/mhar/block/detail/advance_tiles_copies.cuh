// SPDX-License-Identifier: Apache-2.0
//! How advance_tiles copies states and rows into its slots.
#pragma once

#include <mhar/block/advance_tiles.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Starts the copies of this warp's next lines into a slot, as one group; or of a share of them, the
//! early one as a part of the next group.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
template <typename advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::share Share>
__device__ __forceinline__ void advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::copy_next(
    int slot)
{
  if (next_.position < count_) {
    if (next_line_ < 0) {
      const int call = next_line_ + 8 * Halves;
      if constexpr (Share != share::rest) {
        const State* const states = state_of((min)(call + row_, num_calls_ - 1), next_);
        copy_lines(slot, reinterpret_cast<const T*>(states) + quad_ * 8, row_ < num_calls_ - call);
      }
      if constexpr (Share != share::early) { copy_lse(slot, call); }
    }
    else {
      const int count = pass_.num_rows - next_line_;
      const bool exists = row_ < count;
      if (Share == share::all || (row_ == count - 1) == (Share == share::rest)) {
        copy_lines(slot, exists ? row_ahead_ : pass_.rows, exists);
      }
      if (Share != share::early && lane_ < (min)(count - (pass_.has_new_row ? 1 : 0), 8)) {
        detail::copy_async_4(scalars(slot) + lane_, inverse_ahead_);
      }
      row_ahead_ += 8 * pass_.row_stride;
      inverse_ahead_ += 8 * pass_.num_positions;
    }
    next_line_ += 8;
    if (next_line_ >= pass_.num_rows) {
      next_line_ = first_line();
      next_.step(blockDim.x / 32, pass_.num_heads);
      find_rows();
    }
  }
  if constexpr (Share != share::early) { detail::end_copy_group(); }
}

}  // namespace block
MHAR_NAMESPACE_END
