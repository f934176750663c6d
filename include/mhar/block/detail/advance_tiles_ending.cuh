// SPDX-License-Identifier: Apache-2.0
//! How advance_tiles ends positions of its first call.
#pragma once

#include <mhar/block/advance_tiles.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Until the position that had this one's place before has been ended.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::wait_for_place(int position) const
{
  const int turn = position / at_.num_places;
  if (turn > 0) { ended(position).wait((turn - 1) % 2); }
}

//! By the warp whose head is the last one of the position; `slot` is free to be used.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::end_position(int position, int slot)
{
  unsigned before = 0;
  if (lane_ == 0) {
    before = atomicInc(counter_of(position), static_cast<unsigned>(pass_.num_heads - 1));
  }
  if (quad_ == 0) { left(position).arrive(); }  // those that have written
  before = __shfl_sync(0xffffffffu, before, 0);
  if (static_cast<int>(before) + 1 < pass_.num_heads) { return; }
  left(position).wait(position / at_.num_places % 2);
  detail::end_call_apart(*ending(), first_ + position, place_of(position), place_lse_of(position),
                         reinterpret_cast<float*>(slots_ + slot * layout::slot_bytes));
  ended(position).arrive();
}

}  // namespace block
MHAR_NAMESPACE_END
