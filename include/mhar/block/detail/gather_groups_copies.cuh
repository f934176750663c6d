// SPDX-License-Identifier: Apache-2.0
//! The warps of gather_groups that bring positions into slots.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/gather_groups_view.cuh>
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
template <class T, int HeadWidth, int Chunks, int Warps, class State, bool Segmented>
class gather_groups_copies
{
public:
  using view = gather_groups_view<T, HeadWidth, Chunks, State, Segmented>;
  using layout = typename view::layout;

  __device__ __forceinline__ gather_groups_copies(const view& block, const tensor_map& calls,
                                                  int warp)
      : block_{block},
        calls_{calls},
        warp_{warp},
        member_{(min)(block.lane, block.pass.num_rows - 1)},
        rows_{block.pass.row_stride, block.lane},
        states_{block.pass.slot_stride, block.lane}
  {
    const gather_tensor_params<T>& pass = block.pass;
    const std::int64_t position = block.first + warp;
    const std::int64_t column = block.head * HeadWidth;
    next_row_ = pass.rows + position * pass.position_stride + column;
    next_state_ = static_cast<const State*>(pass.states) + position * pass.width + column;
    next_top_ = pass.row_gradient + position * pass.gradient_stride + column + block.lane * 8;
    next_mix_ = pass.mix + position * pass.mix_position_stride + column + block.lane * 8;
    next_head_ = block.head_index(block.lane, position);
    next_inverse_ = pass.inverse_rms + position - member_ * pass.num_positions;
    next_sum_ = pass.head_sums + position + member_ * pass.num_positions;
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
      if (block_.top_is_elsewhere() && pass.row_gradient != nullptr &&
          block_.lane < HeadWidth / 8) {
        copy_async(states + static_cast<std::uint32_t>(block_.lane * 16), next_top_);
      }
    }
    const std::uint32_t values = slot + static_cast<std::uint32_t>(block_.lane * 4);
    if (block_.has_mix() && block_.lane < HeadWidth / 8) {
      copy_async(slot + static_cast<std::uint32_t>(layout::mix + block_.lane * 16), next_mix_);
    }
    const std::int64_t group = 32 * pass.num_positions * pass.num_heads;
    std::int64_t head = next_head_;
#pragma unroll 1
    for (int c = block_.lane; c < block_.num_calls(); c += 32) {
      const auto place = static_cast<std::uint32_t>((c - block_.lane) * 4);
      copy_async_4(values + static_cast<std::uint32_t>(layout::lse) + place, pass.lse + head);
      if (c > 0 || !block_.has_mix()) {
        copy_async_4(values + static_cast<std::uint32_t>(layout::dot) + place, pass.dot + head);
      }
      head += group;
    }
    if (block_.lane < layout::members) {
      copy_async_4(values + static_cast<std::uint32_t>(layout::inverse), next_inverse_);
      if (block_.kept() && (member_ > 0 || !block_.top_is_elsewhere())) {
        copy_async_4(values + static_cast<std::uint32_t>(layout::kept_sums), next_sum_);
      }
    }
  }

  __device__ __forceinline__ void step()
  {
    const gather_tensor_params<T>& pass = block_.pass;
    next_row_ += Warps * pass.position_stride;
    next_state_ += Warps * pass.width;
    next_top_ += Warps * pass.gradient_stride;
    next_mix_ += Warps * pass.mix_position_stride;
    next_head_ += Warps * pass.num_heads;
    next_inverse_ += Warps;
    next_sum_ += Warps;
  }

  const view& block_;
  const tensor_map& calls_;
  int warp_;
  int member_;  // of this lane
  line_copy<layout, true> rows_;
  line_copy<layout, false> states_;

  // Of the position that comes next; of those that differ by lane, this lane's.
  const T* next_row_;
  const State* next_state_;
  const T* next_top_;  // of the finished row, when calls come in segments
  const T* next_mix_;
  std::int64_t next_head_;
  const float* next_inverse_;
  const float* next_sum_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
