// SPDX-License-Identifier: Apache-2.0
//! The warp of gather_tiles that ends what the heads share: head sums, and the finished row.
#pragma once

#include <mhar/block/detail/gather_tiles_view.cuh>
#include <mhar/tuning/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Positions in batches, a lane per position and row. Per batch: head sums are sent and the slots
//! given back; the finished rows of the batch before follow, whose head sums have had time to come.
//!
//! Ring of head sums: a block sends those of batch b + 4 after it has those of b + 2, which the
//! others have sent after they were done with those of b.
template <int HeadWidth, int Batch, int MemberTiles, class State>
class gather_tiles_finish
{
public:
  using view = gather_tiles_view<HeadWidth, MemberTiles, State>;
  using layout = typename view::layout;

  __device__ __forceinline__ explicit gather_tiles_finish(const view& block)
      : block_{block},
        member_{block.lane % layout::members},
        of_batch_{block.lane / layout::members}
  {
  }

  __device__ __forceinline__ void run()
  {
    const gather_tensor_params& pass = block_.pass;
    next_gradient_ = pass.row_gradient + block_.first * pass.gradient_stride +
                     block_.head * HeadWidth + block_.lane;
    ring_place slot;
    int place = 0;
    int parity = 0;
    pending last;
#pragma unroll 1
    for (int p = 0; p < block_.count; p += Batch) {
      pending next;
      ring_place mine = slot;  // of this lane's position
#pragma unroll
      for (int x = 0; x < Batch; ++x) {
        if (p + x < block_.count) {
          block_.done(slot.index).wait(slot.phase);
          take_row(slot.index, x, next);
          mine.index = of_batch_ == x ? slot.index : mine.index;
          slot.advance(block_.at.num_slots);
        }
      }
      const bool counts = of_batch_ < Batch && p + of_batch_ < block_.count;
      send_head_sums(mine.index, place, counts, p, next);
      __syncwarp();
      if (counts && member_ == 0) { block_.empty(mine.index).arrive(); }
      if (p > 0) { finish(p - Batch, (place + 3) % 4, place == 0 ? parity ^ 1 : parity, last); }
      last = next;
      place = (place + 1) % 4;
      parity ^= place == 0 ? 1 : 0;
    }
    const int rest = (block_.count - 1) / Batch * Batch;
    finish(rest, (place + 3) % 4, place == 0 ? parity ^ 1 : parity, last);
  }

private:
  static constexpr int columns = HeadWidth / 32;

  //! What the end of a batch still needs: of the finished rows, this lane's columns; of this lane's
  //! position and row, the rest.
  struct pending
  {
    float gradient[static_cast<std::size_t>(Batch)][static_cast<std::size_t>(columns)];
    float row[static_cast<std::size_t>(Batch)][static_cast<std::size_t>(columns)];
    float inverse;  // of the finished row
    float kept_sum;
  };

  [[nodiscard]] __device__ __forceinline__ std::uint32_t at(int slot, int place) const
  {
    return block_.slot(slot) + static_cast<std::uint32_t>(place);
  }

  //! sum + the first `count` of `Most` numbers, in order; all loads come first.
  template <int Most>
  [[nodiscard]] __device__ __forceinline__ static float add_floats(std::uint32_t from, int distance,
                                                                   int count, float sum)
  {
    float values[static_cast<std::size_t>(Most)];
#pragma unroll
    for (int x = 0; x < Most; ++x) {
      values[x] = x < count ? load_float(from + static_cast<std::uint32_t>(x * distance)) : 0.0f;
    }
#pragma unroll
    for (int x = 0; x < Most; ++x) { sum += values[x]; }
    return sum;
  }

  __device__ __forceinline__ void take_row(int slot, int x, pending& to) const
  {
    const std::uint32_t row = at(slot, block_.at.rows + block_.lane / 2 * 4);
    const std::uint32_t top = at(slot, block_.at.top + block_.lane * 4);
#pragma unroll
    for (int k = 0; k < columns; ++k) {
      to.gradient[x][k] = load_float(top + k * 128);
      to.row[x][k] = load_float(row + k * 64);
    }
  }

  __device__ __forceinline__ void send_head_sums(int slot, int place, bool counts, int p,
                                                 pending& next) const
  {
    const gather_tensor_params& pass = block_.pass;
    const std::uint32_t exchange = block_.exchange(place);
    const int heads = pass.num_heads;
    if (block_.lane == 0) {
      const int positions = (min)(Batch, block_.count - p);
      expect_bytes(exchange, heads, positions * (block_.head == 0 ? pass.num_rows : 1) * 4);
    }
    float sum = 0;
    next.inverse = 0;
    next.kept_sum = 0;
    if (counts) {
      const std::uint32_t parts = at(slot, block_.at.head_sums + member_ * 4);
      for (int chunk = 0; chunk < block_.at.chunks; chunk += 4) {
        sum = add_floats<4>(parts + static_cast<std::uint32_t>(chunk * 64), 64,
                            block_.at.chunks - chunk, sum);
      }
      next.inverse = load_float(at(slot, block_.at.inverse));
      if (pass.kept) { next.kept_sum = load_float(at(slot, block_.at.kept_sums + member_ * 4)); }
    }
    const std::uint32_t to = block_.sent_sums(place, block_.head);
    if (counts && member_ < pass.num_rows) {
      send(to + static_cast<std::uint32_t>(block_.lane) * 4, exchange, heads, 0, sum);
    }
    // The finished row's to every other block: a lane per block.
#pragma unroll
    for (int x = 0; x < Batch; ++x) {
      const float top = __shfl_sync(0xffffffffu, sum, x * layout::members);
      if (p + x < block_.count && block_.lane > 0 && block_.lane < heads) {
        send(to + x * layout::members * 4, exchange, heads, block_.lane, top);
      }
    }
  }

  //! The norm's part of the finished rows, and the head sums of the others.
  __device__ __forceinline__ void finish(int p, int place, int parity, const pending& last)
  {
    const gather_tensor_params& pass = block_.pass;
    wait_for_bytes(block_.exchange(place), parity);
    const bool counts = of_batch_ < Batch && p + of_batch_ < block_.count;
    const bool holds = block_.head == 0 && member_ < pass.num_rows && counts;
    // Lanes without a row of their own read the finished row's.
    const int m = of_batch_ % Batch * layout::members + (holds ? member_ : 0);
    const std::uint32_t from = block_.sent_sums(place, 0) + static_cast<std::uint32_t>(m * 4);
    const float sum =
        add_floats<tuning::sweep_policy::max_heads>(from, 128, pass.num_heads, last.kept_sum);
    if (holds && (member_ > 0 || !pass.finishes)) {
      pass.head_sums[member_ * pass.num_positions + block_.first + p + of_batch_] = sum;
    }
    if (pass.finishes && pass.row_gradient != nullptr) {
      const float correction = -last.inverse * sum * pass.inverse_width;
#pragma unroll
      for (int x = 0; x < Batch; ++x) {
        const float factor = __shfl_sync(0xffffffffu, correction, x * layout::members);
        const float inverse = __shfl_sync(0xffffffffu, last.inverse, x * layout::members);
        if (p + x < block_.count) {
          // r * (r * s): a large row's r^2 would vanish before it meets the row.
#pragma unroll
          for (int k = 0; k < columns; ++k) {
            const std::uint32_t pair = __float_as_uint(last.row[x][k]);
            const float row = block_.lane % 2 == 0 ? first_of(pair) : second_of(pair);
            next_gradient_[k * 32] =
                round_to<bfloat16>(fmaf(factor, inverse * row, last.gradient[x][k]));
          }
          next_gradient_ += pass.gradient_stride;
        }
      }
    }
  }

  const view& block_;
  int member_;    // of this lane
  int of_batch_;  // its position
  bfloat16* next_gradient_ = nullptr;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
