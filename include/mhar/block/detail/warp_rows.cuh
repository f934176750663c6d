// SPDX-License-Identifier: Apache-2.0
//! The rows of a warp's positions as one stream that runs ahead through a ring in shared memory.
#pragma once

#include <mhar/block/detail/bulk_copy.cuh>
#include <mhar/block/detail/warp_storage.cuh>
#include <mhar/block/route_parameters.cuh>
#include <mhar/block/row_pointers.cuh>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! What a warp reads of a position: its rows, then the partial if the stream has it, which is of T then. Other sources of a warp's
//! stream have the same members.
template <class T, int Capacity>
struct call_rows
{
  const route_parameters<T>& p;
  const row_pointers<T, Capacity>& rows;
  bool has_partial;

  [[nodiscard]] __device__ __forceinline__ int num_rows() const
  {
    return p.num_rows + (has_partial ? 1 : 0);
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t num_positions() const
  {
    return p.num_positions;
  }
  [[nodiscard]] __device__ __forceinline__ const void* at(int row, std::int64_t position) const
  {
    if (row < p.num_rows) { return rows.at(row, position); }
    return static_cast<const T*>(p.partial.data) + position * p.partial.position_stride;
  }
};

//! Whole warps call. Row k is the k-th that has not left. Split warps share a position, and each takes its part of the rows.
//!
//! A block has every gridDim.x-th position, its turns, so that what is left for a last round is spread over all blocks. Its warps take
//! turns as they come to them, since they do not advance at one speed; those that share positions have fixed ones.
template <class Source, int Split>
class warp_rows
{
public:
  //! At most 31 slots. `dealt` is the block's number of turns that warps have taken.
  __device__ __forceinline__ warp_rows(const Source& source, const warp_ring& ring, int warp,
                                       std::uint64_t* barriers, char* slots, int* dealt)
      : source_{source},
        ring_{ring},
        group_{warp / Split},
        part_{warp % Split},
        barriers_{barriers},
        slots_{slots},
        dealt_{dealt}
  {
  }

  __device__ __forceinline__ void init_barriers() const
  {
    // One lane: racecheck does not follow the barriers that many lanes ready at once.
    if (lane() == 0) {
      for (int slot = 0; slot < ring_.slots; ++slot) { copy_barrier{barriers_ + slot}.init(); }
      fence_bulk_copies();
    }
    __syncwarp();
  }
  //! Asks for as many rows as there are slots: the first turns of every warp are fixed.
  __device__ __forceinline__ void fill()
  {
    take_turn<true>();
    fetch<true>(ring_.slots, lane());
  }
  //! By one thread, before a barrier of the block that comes before any row is replaced.
  __device__ __forceinline__ void init_dealt() const
  {
    *dealt_ = (1 + ring_.slots / source_.num_rows()) * (ring_.warps / Split);
  }
  //! The position whose rows come next: the last one of the warp was before if this is none of the call's.
  [[nodiscard]] __device__ __forceinline__ std::int64_t begin_position()
  {
    return position_of(__shfl_sync(0xffffffffu, turns_, begun_++ & 31));
  }

  //! The lanes may wait for different rows; all can read them then.
  __device__ __forceinline__ void wait(int k) const
  {
    const int slot = slot_of(k);
    copy_barrier{barriers_ + slot}.wait(slot < slot_ ? phase_ ^ 1 : phase_);
    __syncwarp();
  }
  [[nodiscard]] __device__ __forceinline__ const char* at(int k) const
  {
    return slots_ + slot_of(k) * ring_.slot_bytes;
  }
  //! Asks for `count` rows more, which take the places of rows [first, first + count): no lane reads these any more.
  __device__ __forceinline__ void replace(int first, int count)
  {
    fence_async_proxy();
    __syncwarp();
    fetch<false>(count, slot_of(first + (lane() < count ? lane() : 0)));
  }
  //! The same for one row: it is the next one, which every lane knows.
  __device__ __forceinline__ void replace_one(int k)
  {
    fence_async_proxy();
    __syncwarp();
    const std::int64_t position = position_of(next_turn_);
    if (lane() == 0 && position < source_.num_positions()) { ask(slot_of(k), next_row_, position); }
    if (++next_row_ == source_.num_rows()) { take_turn<false>(); }
  }
  //! Rows that were replaced leave.
  __device__ __forceinline__ void leave(int count)
  {
    slot_ += count;
    if (slot_ >= ring_.slots) {
      slot_ -= ring_.slots;
      phase_ ^= 1;
    }
  }

private:
  [[nodiscard]] static __device__ __forceinline__ int lane()
  {
    return static_cast<int>(threadIdx.x) & 31;
  }
  [[nodiscard]] __device__ __forceinline__ int slot_of(int k) const
  {
    const int slot = slot_ + k;
    return slot >= ring_.slots ? slot - ring_.slots : slot;
  }
  __device__ __forceinline__ void ask(int slot, int row, std::int64_t position) const
  {
    const copy_barrier full{barriers_ + slot};
    full.expect(ring_.slot_bytes);
    copy_bulk(slots_ + slot * ring_.slot_bytes,
              static_cast<const char*>(source_.at(row, position)) + part_ * ring_.slot_bytes,
              ring_.slot_bytes, full);
  }
  [[nodiscard]] static __device__ __forceinline__ std::int64_t position_of(int turn)
  {
    return static_cast<std::int64_t>(turn) * gridDim.x + blockIdx.x;
  }
  //! The next position to ask for; a lane remembers it until the warp comes to it.
  template <bool First>
  __device__ __forceinline__ void take_turn()
  {
    if constexpr (First || Split > 1) { next_turn_ = taken_ * (ring_.warps / Split) + group_; }
    else {
      if (lane() == 0) { next_turn_ = atomicAdd(dealt_, 1); }
      next_turn_ = __shfl_sync(0xffffffffu, next_turn_, 0);
    }
    if (lane() == (taken_ & 31)) { turns_ = next_turn_; }
    ++taken_;
    next_row_ = 0;
  }
  //! A lane asks for a row, the l-th from the next on.
  template <bool First>
  __device__ __forceinline__ void fetch(int count, int slot)
  {
    int done = 0;
    do {
      const int left = source_.num_rows() - next_row_;
      const int here = count - done < left ? count - done : left;
      const int own = lane() - done;
      const std::int64_t position = position_of(next_turn_);
      if (own >= 0 && own < here && position < source_.num_positions()) {
        ask(slot, next_row_ + own, position);
      }
      next_row_ += here;
      done += here;
      if (next_row_ == source_.num_rows()) { take_turn<First>(); }
    } while (done < count);
  }

  Source source_;
  const warp_ring& ring_;
  int group_;
  int part_;
  std::uint64_t* barriers_;
  char* slots_;
  int* dealt_;
  int turns_ = 0;  //!< lane l: the l-th turn that the warp has taken, the 32nd after it, ...
  int taken_ = 0;
  int begun_ = 0;
  int next_turn_ = 0;
  int next_row_ = 0;
  int slot_ = 0;
  int phase_ = 0;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
