// SPDX-License-Identifier: Apache-2.0
//! The warp of a backward pass over many calls that ends what the heads share: head sums, and the finished row.
#pragma once

#include <mhar/block/detail/gather_view.cuh>
#include <mhar/tuning/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Positions in batches, as many lanes for each. Per batch: head sums are sent and the slots given
//! back; the finished rows of the batch before follow, whose head sums have had time to come.
//!
//! Ring of head sums: a block sends those of batch b + 4 after it has those of b + 2, which the
//! others have sent after they were done with those of b.
template <class View, int Batch>
class gather_finish
{
public:
  using layout = typename View::layout;
  using T = typename View::element;

  __device__ __forceinline__ explicit gather_finish(const View& block)
      : block_{block}, mine_{block.lane / lanes}, part_{block.lane % lanes}
  {
    next_gradient_ = block.pass.row_gradient + (block.first + mine_) * block.pass.gradient_stride +
                     block.head * HeadWidth + part_ * 4;
  }

  __device__ __forceinline__ void run()
  {
    ring_place slot;  // of this lane's position
    slot.advance_by(mine_, block_.at.num_slots);
    int place = 0;
    int parity = 0;
    // All of both is set: what only some lanes set would be kept, and spilled, from segment to segment.
    pending last{};
#pragma unroll 1
    for (int p = 0; p < block_.count; p += Batch) {
      pending next{};
      const bool counts = p + mine_ < block_.count;
      if (counts) {
        block_.done(slot.index).wait(slot.phase);
        take(slot.index, p, next);
      }
      __syncwarp();
      send_head_sums(slot.index, place, p);
      __syncwarp();
      if (counts) { block_.empty(slot.index).arrive(); }
      slot.advance_by(Batch, block_.at.num_slots);
      if (p > 0) { finish(p - Batch, (place + 3) % 4, place == 0 ? parity ^ 1 : parity, last); }
      last = next;
      place = (place + 1) % 4;
      parity ^= place == 0 ? 1 : 0;
    }
    const int rest = (block_.count - 1) / Batch * Batch;
    finish(rest, (place + 3) % 4, place == 0 ? parity ^ 1 : parity, last);
  }

private:
  static constexpr int HeadWidth = layout::head_width;
  static constexpr int lanes = 32 / Batch;  // of a position
  static constexpr int rounds = (HeadWidth / 4 + lanes - 1) / lanes;
  static constexpr int values = (layout::members + lanes - 1) / lanes;  // head sums of a lane

  //! What the end of a batch still needs, of this lane's position: four columns of the finished row
  //! each round, and the kept sums of its rows.
  struct pending
  {
    uint4 gradient[static_cast<std::size_t>(rounds)];
    uint2 row[static_cast<std::size_t>(rounds)];
    float kept_sums[static_cast<std::size_t>(values)];
    float inverse;  // of the finished row
  };

  [[nodiscard]] __device__ __forceinline__ std::uint32_t at(int slot, int place) const
  {
    return block_.slot(slot) + static_cast<std::uint32_t>(place);
  }
  [[nodiscard]] __device__ __forceinline__ int member(int value) const
  {
    return part_ + value * lanes;
  }
  [[nodiscard]] __device__ __forceinline__ bool has(int round) const
  {
    return HeadWidth / 4 % lanes == 0 || part_ + round * lanes < HeadWidth / 4;
  }

  //! sum + the first `count` of `Most` numbers, in order; all loads come first.
  template <int Most>
  [[nodiscard]] __device__ __forceinline__ static float add_floats(std::uint32_t from, int distance,
                                                                   int count, float sum)
  {
    float numbers[static_cast<std::size_t>(Most)];
#pragma unroll
    for (int x = 0; x < Most; ++x) {
      numbers[x] = x < count ? load_float(from + static_cast<std::uint32_t>(x * distance)) : 0.0f;
    }
#pragma unroll
    for (int x = 0; x < Most; ++x) { sum += numbers[x]; }
    return sum;
  }

  __device__ __forceinline__ void take(int slot, int p, pending& to) const
  {
    const gather_tensor_params<T>& pass = block_.pass;
    to.inverse = load_float(at(slot, block_.at.inverse));
#pragma unroll
    for (int v = 0; v < values; ++v) {
      to.kept_sums[v] = 0;
      if (block_.kept() && member(v) < pass.num_rows) {
        to.kept_sums[v] = load_float(at(slot, block_.at.kept_sums + member(v) * 4));
      }
    }
    if (View::segmented && part_ == 0 && block_.segment > 0) {
      to.kept_sums[0] = load_float(block_.top_sum(p + mine_));
    }
    if (!block_.finishes()) { return; }
    const std::uint32_t top = at(slot, block_.at.top + part_ * 16);
#pragma unroll
    for (int k = 0; k < rounds; ++k) {
      if (has(k)) {
        to.gradient[k] = load_16_bytes(top + k * lanes * 16);
        to.row[k] = load_8_bytes(at(slot, block_.at.top_row(part_ * 8, k * lanes * 8)));
      }
    }
  }

  __device__ __forceinline__ void send_head_sums(int slot, int place, int p) const
  {
    const gather_tensor_params<T>& pass = block_.pass;
    const std::uint32_t exchange = block_.exchange(place);
    const int heads = pass.num_heads;
    const bool counts = p + mine_ < block_.count;
    if (block_.lane == 0) {
      const int positions = (min)(Batch, block_.count - p);
      expect_bytes(exchange, heads, positions * (block_.head == 0 ? pass.num_rows : 1) * 4);
    }
    const std::uint32_t to = block_.sent_sums(place, block_.head) +
                             static_cast<std::uint32_t>(mine_ * layout::members * 4);
    float top = 0;
#pragma unroll
    for (int v = 0; v < values; ++v) {
      if (!counts || member(v) >= pass.num_rows) { continue; }
      const std::uint32_t parts = at(slot, block_.at.head_sums + member(v) * 4);
      float sum = 0;
      for (int chunk = 0; chunk < block_.chunks(); chunk += 4) {
        sum = add_floats<4>(parts + static_cast<std::uint32_t>(chunk * 64), 64,
                            block_.chunks() - chunk, sum);
      }
      send(to + static_cast<std::uint32_t>(member(v) * 4), exchange, heads, 0, sum);
      if (v == 0) { top = sum; }
    }
    // The finished row's to every other block: a lane per block.
    top = __shfl_sync(0xffffffffu, top, mine_ * lanes);
    if (counts && part_ > 0 && part_ < heads) { send(to, exchange, heads, part_, top); }
  }

  //! The norm's part of the finished rows, and the head sums of the others.
  __device__ __forceinline__ void finish(int p, int place, int parity, const pending& last)
  {
    const gather_tensor_params<T>& pass = block_.pass;
    wait_for_bytes(block_.exchange(place), parity);
    const bool counts = p + mine_ < block_.count;
    float top = 0;
#pragma unroll
    for (int v = 0; v < values; ++v) {
      const int m = member(v);
      // The other blocks know the finished row's sum only.
      if (!counts || m >= pass.num_rows || (block_.head > 0 && m > 0)) { continue; }
      const std::uint32_t from = block_.sent_sums(place, 0) +
                                 static_cast<std::uint32_t>((mine_ * layout::members + m) * 4);
      const float sum = add_floats<tuning::sweep_policy::max_heads>(
          from, layout::sent_bytes, pass.num_heads, last.kept_sums[v]);
      if (View::segmented && m == 0) { store_float(block_.top_sum(p + mine_), sum); }
      if (block_.head == 0 && (m > 0 || !pass.finishes)) {
        pass.head_sums[m * pass.num_positions + block_.first + p + mine_] = sum;
      }
      if (v == 0) { top = sum; }
    }
    if (!block_.finishes() || pass.row_gradient == nullptr) { return; }
    top = __shfl_sync(0xffffffffu, top, mine_ * lanes);
    const float factor = -last.inverse * top * pass.inverse_width;
    // r * (r * s): a large row's r^2 would vanish before it meets the row.
#pragma unroll
    for (int k = 0; k < rounds; ++k) {
      if (!counts || !has(k)) { continue; }
      const auto gradient = [&](std::uint32_t value, float row) {
        return fmaf(factor, last.inverse * row, __uint_as_float(value));
      };
      const uint4& sum = last.gradient[k];
      const uint2& row = last.row[k];
      *reinterpret_cast<uint2*>(next_gradient_ + k * lanes * 4) = make_uint2(
          make_pair<T>(gradient(sum.x, first_of<T>(row.x)), gradient(sum.y, second_of<T>(row.x))),
          make_pair<T>(gradient(sum.z, first_of<T>(row.y)), gradient(sum.w, second_of<T>(row.y))));
    }
    next_gradient_ += Batch * pass.gradient_stride;
  }

  const View& block_;
  int mine_;  // this lane's position of a batch
  int part_;  // and its place among that position's lanes
  T* next_gradient_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
