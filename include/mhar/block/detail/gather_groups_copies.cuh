// SPDX-License-Identifier: Apache-2.0
//! The warps of gather_groups that bring positions into slots.
#pragma once

#include <mhar/block/detail/gather_groups_view.cuh>
#include <mhar/block/detail/gather_values.cuh>
#include <mhar/block/detail/tensor_copy.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Copies of up to 16 rows, some lines at a time, in which every lane has a vector of each tile:
//! permuted as products read them, or as rows of tile_row_bytes.
template <class Layout, bool Permuted>
class line_copy
{
public:
  __device__ __forceinline__ line_copy(std::int64_t stride, int lane)
      : line_{lane / vectors},
        source_{(lane / vectors * stride + lane % vectors * 8) * 2},
        step_{lines * stride * 2},
        target_{static_cast<std::uint32_t>(
            Permuted ? Layout::vector_place(lane / vectors, lane % vectors)
                     : lane / vectors * Layout::state_bytes + lane % vectors * 16)}
  {
  }

  //! Rows before `first` are left out.
  __device__ __forceinline__ void start(std::uint32_t to, const void* rows, int count,
                                        int first = 0) const
  {
    const char* from = static_cast<const char*>(rows) + source_;
    to += target_;
#pragma unroll
    for (int line = 0; line < Layout::members; line += lines) {
      if (line + line_ >= first && line + line_ < count) {
        const std::uint32_t place =
            Permuted ? Layout::after_lines(to, line)
                     : to + static_cast<std::uint32_t>(line * Layout::state_bytes);
#pragma unroll
        for (int x = 0; x < Layout::tiles; ++x) {
          constexpr int tile = Permuted ? Layout::tile_bytes : Layout::line_bytes;
          copy_async(place + static_cast<std::uint32_t>(x * tile), from + x * Layout::line_bytes);
        }
      }
      from += step_;
    }
  }

private:
  static constexpr int vectors = Layout::line_vectors;
  static constexpr int lines = 32 / vectors;

  int line_;
  std::int64_t source_;  // bytes
  std::int64_t step_;
  std::uint32_t target_;
};

//! `Warps` warps take the positions in turn. The calls' gradients come as one box of a tensor map, which
//! puts zeros where no call is; everything else lane by lane.
template <class T, int HeadWidth, int Chunks, int Warps, bool Segmented>
class gather_groups_copies
{
public:
  using view = gather_groups_view<T, HeadWidth, Chunks, Segmented>;
  using layout = typename view::layout;

  __device__ __forceinline__ gather_groups_copies(const view& block, const tensor_map& calls,
                                                  int warp)
      : block_{block},
        calls_{calls},
        warp_{warp},
        values_{block, block.first + warp},
        rows_{block.pass.row_stride, block.lane},
        states_{block.pass.slot_stride, block.lane}
  {
    const gather_tensor_params<T>& pass = block.pass;
    const std::int64_t position = block.first + warp;
    const std::int64_t column = block.head * HeadWidth;
    next_row_ = pass.rows + position * pass.position_stride + column;
    next_state_ = static_cast<const T*>(pass.states) + position * pass.width + column;
  }

  __device__ __forceinline__ void run()
  {
    ring_place slot;
    slot.advance_by(warp_, block_.at.num_slots);
#pragma unroll 1
    for (int p = warp_; p < block_.count; p += Warps) {
      if (p >= block_.at.num_slots) { block_.empty(slot.index).wait(slot.phase ^ 1); }
      const std::uint32_t place = block_.slot(slot.index);
      const warp_barrier full = block_.full(slot.index);
      if (block_.lane == 0) {
        full.arrive_and_expect(layout::call_bytes);
        copy_box(place, calls_, 0, block_.first_call(), block_.head * layout::tiles,
                 static_cast<int>(block_.first) + p, full.address);
      }
      start(place);
      full.arrive_after_copies();
      slot.advance_by(Warps, block_.at.num_slots);
      step();
    }
  }

private:
  __device__ __forceinline__ void start(std::uint32_t slot) const
  {
    const gather_tensor_params<T>& pass = block_.pass;
    rows_.start(slot + static_cast<std::uint32_t>(layout::rows), next_row_, pass.num_rows);
    if (block_.kept()) {
      const std::uint32_t states = slot + static_cast<std::uint32_t>(layout::states);
      states_.start(states, next_state_, pass.num_rows, block_.top_is_elsewhere() ? 1 : 0);
    }
    values_.start(slot);
  }

  __device__ __forceinline__ void step()
  {
    const gather_tensor_params<T>& pass = block_.pass;
    values_.step(Warps);
    next_row_ += Warps * pass.position_stride;
    next_state_ += Warps * pass.width;
  }

  const view& block_;
  const tensor_map& calls_;
  int warp_;
  gather_values<view> values_;
  line_copy<layout, true> rows_;
  line_copy<layout, false> states_;

  // Of the position that comes next.
  const T* next_row_;
  const T* next_state_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
