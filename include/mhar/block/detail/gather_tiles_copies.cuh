// SPDX-License-Identifier: Apache-2.0
//! The warp of gather_tiles that brings positions into slots.
#pragma once

#include <mhar/block/detail/gather_tiles_view.cuh>
#include <mhar/block/detail/gather_values.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Starts Count copies of 16 bytes, those of lanes that have them. One statement: the compiler puts
//! three empty loads in front of every such run of copies.
template <std::size_t Count>
__device__ __forceinline__ void start_copies(const std::uint32_t (&to)[Count],
                                             const char* const (&from)[Count],
                                             const bool (&has)[Count])
{
  if constexpr (Count % 5 == 0) {
#pragma unroll
    for (std::size_t x = 0; x < Count; x += 5) {
      asm volatile(
          "{\n"
          ".reg .pred p<5>;\n"
          "setp.ne.s32 p0, %10, 0;\n"
          "setp.ne.s32 p1, %11, 0;\n"
          "setp.ne.s32 p2, %12, 0;\n"
          "setp.ne.s32 p3, %13, 0;\n"
          "setp.ne.s32 p4, %14, 0;\n"
          "@p0 cp.async.cg.shared.global [%0], [%5], 16;\n"
          "@p1 cp.async.cg.shared.global [%1], [%6], 16;\n"
          "@p2 cp.async.cg.shared.global [%2], [%7], 16;\n"
          "@p3 cp.async.cg.shared.global [%3], [%8], 16;\n"
          "@p4 cp.async.cg.shared.global [%4], [%9], 16;\n"
          "}" ::"r"(to[x]),
          "r"(to[x + 1]), "r"(to[x + 2]), "r"(to[x + 3]), "r"(to[x + 4]), "l"(from[x]),
          "l"(from[x + 1]), "l"(from[x + 2]), "l"(from[x + 3]), "l"(from[x + 4]),
          "r"(static_cast<int>(has[x])), "r"(static_cast<int>(has[x + 1])),
          "r"(static_cast<int>(has[x + 2])), "r"(static_cast<int>(has[x + 3])),
          "r"(static_cast<int>(has[x + 4]))
          : "memory");
    }
  }
  else {
#pragma unroll
    for (std::size_t x = 0; x < Count; x += 2) {
      asm volatile(
          "{\n"
          ".reg .pred p<2>;\n"
          "setp.ne.s32 p0, %4, 0;\n"
          "setp.ne.s32 p1, %5, 0;\n"
          "@p0 cp.async.cg.shared.global [%0], [%2], 16;\n"
          "@p1 cp.async.cg.shared.global [%1], [%3], 16;\n"
          "}" ::"r"(to[x]),
          "r"(to[x + 1]), "l"(from[x]), "l"(from[x + 1]), "r"(static_cast<int>(has[x])),
          "r"(static_cast<int>(has[x + 1]))
          : "memory");
    }
  }
}

//! Copies of rows, eight at a time, in which every lane has a 16-byte vector each time.
template <class Element, int HeadWidth>
struct group_copy
{
  static constexpr int vectors = HeadWidth * static_cast<int>(sizeof(Element)) / 16;
  static constexpr int rows = 8;
  static constexpr int copies = rows * vectors / 32;
  static constexpr int row_bytes = tile_row_bytes<Element, HeadWidth>;

  std::int64_t source[static_cast<std::size_t>(copies)];  // bytes
  std::uint32_t target[static_cast<std::size_t>(copies)];
  int row[static_cast<std::size_t>(copies)];
  std::int64_t step;

  __device__ __forceinline__ group_copy(std::int64_t stride, int lane)
      : step{stride * rows * static_cast<int>(sizeof(Element))}
  {
#pragma unroll
    for (int x = 0; x < copies; ++x) {
      const int vector = x * 32 + lane;
      row[x] = vector / vectors;
      source[x] = row[x] * stride * static_cast<int>(sizeof(Element)) + vector % vectors * 16;
      target[x] = static_cast<std::uint32_t>(row[x] * row_bytes + vector % vectors * 16);
    }
  }

  __device__ __forceinline__ void start(std::uint32_t to, const Element* rows_from, int count) const
  {
    const char* from = reinterpret_cast<const char*>(rows_from);
    std::uint32_t places[static_cast<std::size_t>(copies)];
    const char* sources[static_cast<std::size_t>(copies)];
    bool has[static_cast<std::size_t>(copies)];
#pragma unroll 1
    for (; count >= rows; count -= rows) {
#pragma unroll
      for (int x = 0; x < copies; ++x) {
        places[x] = to + target[x];
        sources[x] = from + source[x];
        has[x] = true;
      }
      start_copies(places, sources, has);
      to += rows * row_bytes;
      from += step;
    }
    if (count == 0) { return; }
#pragma unroll
    for (int x = 0; x < copies; ++x) {
      places[x] = to + target[x];
      sources[x] = from + source[x];
      has[x] = row[x] < count;
    }
    start_copies(places, sources, has);
  }
};

//! `Warps` warps take the positions in turn.
template <class T, int HeadWidth, int Warps, int MemberTiles, class State, bool Segmented>
class gather_tiles_copies
{
public:
  using view = gather_tiles_view<T, HeadWidth, MemberTiles, State, Segmented>;

  __device__ __forceinline__ gather_tiles_copies(const view& block, int warp)
      : block_{block},
        warp_{warp},
        values_{block, block.first + warp},
        calls_{block.pass.call_stride, block.lane},
        rows_{block.pass.row_stride, block.lane},
        states_{block.pass.slot_stride, block.lane}
  {
    const gather_tensor_params<T>& pass = block.pass;
    const std::int64_t position = block.first + warp;
    const std::int64_t column = block.head * HeadWidth;
    next_gradient_ = pass.call_gradients + block.first_call() * pass.call_stride +
                     position * pass.call_position_stride + column;
    next_row_ = pass.rows + position * pass.position_stride + column;
    next_state_ = static_cast<const State*>(pass.states) + position * pass.width + column;
  }

  __device__ __forceinline__ void run()
  {
    ring_place slot;
    slot.advance_by(warp_, block_.at.num_slots);
#pragma unroll 1
    for (int p = warp_; p < block_.count; p += Warps) {
      if (p >= block_.at.num_slots) { block_.empty(slot.index).wait(slot.phase ^ 1); }
      start(block_.slot(slot.index));
      block_.full(slot.index).arrive_after_copies();
      slot.advance_by(Warps, block_.at.num_slots);
      step();
    }
  }

private:
  __device__ __forceinline__ void start(std::uint32_t slot) const
  {
    const gather_tensor_params<T>& pass = block_.pass;
    calls_.start(slot, next_gradient_, block_.num_calls());
    rows_.start(slot + static_cast<std::uint32_t>(block_.at.rows), next_row_, pass.num_rows);
    if (block_.kept()) {
      const std::uint32_t states = slot + static_cast<std::uint32_t>(block_.at.states);
      if (!block_.top_is_elsewhere()) { states_.start(states, next_state_, pass.num_rows); }
      else {
        states_.start(states + view::state_bytes, next_state_ + pass.slot_stride,
                      pass.num_rows - 1);
      }
    }
    values_.start(slot);
  }

  __device__ __forceinline__ void step()
  {
    const gather_tensor_params<T>& pass = block_.pass;
    values_.step(Warps);
    next_gradient_ += Warps * pass.call_position_stride;
    next_row_ += Warps * pass.position_stride;
    next_state_ += Warps * pass.width;
  }

  const view& block_;
  int warp_;
  gather_values<view> values_;
  group_copy<T, HeadWidth> calls_;
  group_copy<T, HeadWidth> rows_;
  group_copy<State, HeadWidth> states_;

  // Of the position that comes next.
  const T* next_gradient_;
  const T* next_row_;
  const State* next_state_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
