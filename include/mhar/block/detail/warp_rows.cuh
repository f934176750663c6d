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

//! The rows of a call. Other sources of a warp's stream have the same members.
template <class T, int Capacity>
struct call_rows
{
  const route_parameters<T>& p;
  const row_pointers<T, Capacity>& rows;

  [[nodiscard]] __device__ __forceinline__ int num_rows() const { return p.num_rows; }
  [[nodiscard]] __device__ __forceinline__ std::int64_t num_positions() const
  {
    return p.num_positions;
  }
  [[nodiscard]] __device__ __forceinline__ const void* at(int row, std::int64_t position) const
  {
    return rows.at(row, position);
  }
};

//! Whole warps call. Row k is the k-th that has not left. Split warps share a position, and each takes its part of the rows.
template <class Source, int Split>
class warp_rows
{
public:
  //! At most 32 slots.
  __device__ __forceinline__ warp_rows(const Source& source, const warp_ring& ring, int warp,
                                       std::uint64_t* barriers, char* slots)
      : source_{source},
        ring_{ring},
        part_{warp % Split},
        barriers_{barriers},
        slots_{slots},
        next_position_{first_position(warp)}
  {
  }

  //! Blocks take turns, so that what is left for a last round is spread over all of them.
  [[nodiscard]] static __device__ __forceinline__ std::int64_t first_position(int warp)
  {
    return static_cast<std::int64_t>(warp / Split) * gridDim.x + blockIdx.x;
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t position_step() const
  {
    return static_cast<std::int64_t>(ring_.warps / Split) * gridDim.x;
  }

  //! Before a barrier of the block.
  __device__ __forceinline__ void init_barriers() const
  {
    if (lane() < ring_.slots) { copy_barrier{barriers_ + lane()}.init(); }
    fence_bulk_copies();
  }
  //! Asks for as many rows as there are slots.
  __device__ __forceinline__ void fill() { fetch(ring_.slots, lane()); }

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
    fence_bulk_reads();
    __syncwarp();
    fetch(count, slot_of(first + (lane() < count ? lane() : 0)));
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
  //! A lane asks for a row, the l-th from the next on.
  __device__ __forceinline__ void fetch(int count, int slot)
  {
    std::int64_t position = next_position_;
    int row = next_row_ + lane();
    while (row >= source_.num_rows()) {
      row -= source_.num_rows();
      position += position_step();
    }
    if (lane() < count && position < source_.num_positions()) {
      const copy_barrier full{barriers_ + slot};
      full.expect(ring_.slot_bytes);
      copy_bulk(slots_ + slot * ring_.slot_bytes,
                static_cast<const char*>(source_.at(row, position)) + part_ * ring_.slot_bytes,
                ring_.slot_bytes, full);
    }
    next_row_ += count;
    while (next_row_ >= source_.num_rows()) {
      next_row_ -= source_.num_rows();
      next_position_ += position_step();
    }
  }

  Source source_;
  const warp_ring& ring_;
  int part_;
  std::uint64_t* barriers_;
  char* slots_;
  std::int64_t next_position_;
  int next_row_ = 0;
  int slot_ = 0;
  int phase_ = 0;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
