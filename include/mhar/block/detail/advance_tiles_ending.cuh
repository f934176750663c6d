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
  const volatile int* const ended = counters() + at_.num_places + position % at_.num_places;
  while (*ended < position - at_.num_places + 1) {}
  __threadfence_block();
  __syncwarp();
}

//! By the warp whose head is the last one of the position; `slot` is free to be used.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::end_position(int position, int slot)
{
  volatile int* const arrived = counters() + position % at_.num_places;
  // The lanes' writes, then the fence of the one that counts; its fence after counting, then the lanes' reads.
  __syncwarp();
  int before = 0;
  if (lane_ == 0) {
    __threadfence_block();
    before = atomicAdd(const_cast<int*>(arrived), 1);
    __threadfence_block();
  }
  __syncwarp();
  if (__shfl_sync(0xffffffffu, before, 0) + 1 < pass_.num_heads) { return; }
  detail::end_call_apart(*ending(), first_ + position, place_of(position), place_lse_of(position),
                         reinterpret_cast<float*>(slots_ + slot * layout::slot_bytes));
  __threadfence_block();
  __syncwarp();
  if (lane_ == 0) {
    *arrived = 0;
    __threadfence_block();
    arrived[at_.num_places] = position + 1;
  }
}

}  // namespace block
MHAR_NAMESPACE_END
