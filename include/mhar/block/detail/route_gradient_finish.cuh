// SPDX-License-Identifier: Apache-2.0
//! Backward of a call: from the sums of rows to the factors of their gradients, by few lanes while the others wait.
#pragma once

#include <mhar/block/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::lse_of(std::int64_t position,
                                                                            int head) const
    -> accumulate
{
  return call_.lse != nullptr ? call_.lse[position * call_.extent.num_heads + head]
                              : head_memory(call_.arena.states, 0)[head];
}

//! The inverse rms of a row of very large elements, read again from global memory. One warp calls; every lane gets it.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::large_row_inverse(
    int row, std::int64_t position) const -> accumulate
{
  constexpr accumulate scale = thread::overflow_scale<accumulate>;
  const T* const from = call_.rows.at(row, position);
  accumulate sum = 0;
  for (std::int64_t i = threadIdx.x % 32; i < call_.extent.width; i += 32) {
    const accumulate value = scale * widen<accumulate>(from[i]);
    sum = fma(value, value, sum);
  }
  return thread::scaled_inverse_rms(detail::warp_sum(sum), call_.extent.width);
}

//! The row's inverse rms, given or from the sum of its groups. One warp calls; every lane gets it.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::inverse_of(
    int slot, int row, std::int64_t position) const -> accumulate
{
  if (call_.inverse_rms != nullptr) {
    return call_.inverse_rms[row * call_.extent.num_positions + position];
  }
  const int num_groups = call_.map.num_groups;
  const accumulate squares = detail::dealt_sum(parts_of(slot) + 2 * num_groups, num_groups);
  return thread::overflowed(squares) ? large_row_inverse(row, position)
                                     : thread::inverse_rms(squares, call_.extent.width, call_.eps);
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::weight_of(accumulate logit,
                                                                               accumulate lse) const
    -> accumulate
{
  if (lse == -cuda::std::numeric_limits<accumulate>::infinity()) { return 0; }
  return num_sources_ == 1 ? accumulate{1} : thread::exp_of(logit - lse);
}

//! What a lane that finishes a row needs from global memory: asked for before the sums are formed, it is there when they are.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::ask_ahead(
    int batch, std::int64_t position) const -> asked
{
  const gradient_map& map = call_.map;
  const int thread = static_cast<int>(threadIdx.x);
  const int slot = (thread / 32 << map.rows_shift) + (thread % 32 >> map.segment_shift);
  const int head = (thread & (map.segment - 1)) >> map.finish_shift;
  asked result{};
  if (slot < rows_in(batch)) {
    if (call_.lse != nullptr && head < call_.extent.num_heads) {
      result.lse = call_.lse[position * call_.extent.num_heads + head];
    }
    if (call_.inverse_rms != nullptr) {
      const int row = batch * call_.rows_per_stage + slot;
      result.inverse = call_.inverse_rms[row * call_.extent.num_positions + position];
    }
  }
  return result;
}

//! The rows of a batch: their factors in ds = a do + b w + c s, per head (eq. 11 to 14). A segment of a warp's lanes finishes one
//! row, `finish_lanes` of them a head; all lanes of a warp go the same way.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::finish_rows(
    int batch, std::int64_t position, const asked& ahead)
{
  const gradient_map& map = call_.map;
  const int rows = rows_in(batch);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int in_warp = (static_cast<int>(threadIdx.x) % 32) >> map.segment_shift;
  const int step = (map.num_threads / 32) << map.rows_shift;
  for (int first = warp << map.rows_shift; first < rows; first += step) {
    const bool is_first = first == warp << map.rows_shift;
    finish_segment(batch, first, first + in_warp, position, ahead, is_first);
  }
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::finish_segment(
    int batch, int first_slot, int slot, std::int64_t position, const asked& ahead, bool is_first)
{
  const gradient_map& map = call_.map;
  const gradient_arena& arena = call_.arena;
  const int num_heads = call_.extent.num_heads;
  const int lane = static_cast<int>(threadIdx.x) & (map.segment - 1);
  const int sub = lane & (map.finish_lanes - 1);
  const int heads = map.segment >> map.finish_shift;
  const bool has_row = slot < rows_in(batch);
  const int row = batch * call_.rows_per_stage + slot;
  const int source = row + call_.num_null;
  const accumulate* const groups = parts_of(has_row ? slot : first_slot);
  const accumulate* const position_groups = arena_ + arena.position;
  const bool one_round = num_heads <= heads;
  // Row sums of <w, s>, <do, s>, <s, s> and the position's <do, mix>, of one head.
  const auto add_groups = [&](int head, accumulate(&sums)[5]) {
    const int end = (head + 1) * map.groups_per_head;
    for (int i = head * map.groups_per_head + sub; i < end; i += map.finish_lanes) {
      sums[0] += groups[i];
      sums[1] += groups[i + map.num_groups];
      sums[2] += groups[i + 2 * map.num_groups];
      sums[3] += position_groups[i];
      if (rounds_keys()) { sums[4] += groups[i + 3 * map.num_groups]; }
    }
  };

  accumulate sums[5] = {};
  const int own_head = lane >> map.finish_shift;
  if (own_head < num_heads) { add_groups(own_head, sums); }
  accumulate inverse = ahead.inverse;
  if (call_.inverse_rms != nullptr) {
    if (!is_first && has_row) {
      inverse = call_.inverse_rms[row * call_.extent.num_positions + position];
    }
  }
  else {
    accumulate squares[1] = {sums[2]};
    for (int head = own_head + heads; head < num_heads; head += heads) {
      accumulate others[5] = {};
      add_groups(head, others);
      squares[0] += others[2];
    }
    detail::butterfly(squares, map.segment);
    inverse = thread::inverse_rms(squares[0], call_.extent.width, call_.eps);
    const bool large = thread::overflowed(squares[0]);
    if (__any_sync(detail::all_lanes, large)) {
      for (int k = 0; k < 32 >> map.segment_shift; ++k) {
        if (first_slot + k >= rows_in(batch)) { break; }
        const accumulate found =
            large_row_inverse(batch * call_.rows_per_stage + first_slot + k, position);
        if (large && slot == first_slot + k) { inverse = found; }
      }
    }
  }
  const accumulate bias = call_.bias && has_row
                              ? mhar::load<accumulate>(call_.bias.data, call_.bias.type, source)
                              : accumulate{0};

  accumulate totals[2] = {0, 0};  // of dl * u and of dl
  for (int first_head = 0; first_head < num_heads; first_head += heads) {
    const int head = first_head + own_head;
    if (first_head > 0) {
#pragma unroll
      for (int i = 0; i < 5; ++i) { sums[i] = 0; }
      if (head < num_heads) { add_groups(head, sums); }
    }
    detail::butterfly(sums, map.finish_lanes);
    if (head >= num_heads || sub != 0 || !has_row) { continue; }
    const accumulate score = inverse * sums[0];
    const accumulate logit = (rounds_keys() ? sums[4] : score) + bias;
    const accumulate lse =
        call_.lse != nullptr && is_first && first_head == 0 ? ahead.lse : lse_of(position, head);
    const accumulate weight = weight_of(logit, lse);
    const bool open = gate_ != 0 && weight != 0;
    const accumulate dl =
        open && num_sources_ > 1 ? gate_ * weight * (sums[1] - sums[3]) : accumulate{0};
    thread::vector<accumulate, 2> factors;
    factors[0] = open ? gate_ * weight : accumulate{0};
    factors[1] = inverse * dl;
    thread::store_vector(arena_ + arena.factors + (slot * num_heads + head) * 2, factors);
    if (rounds_keys()) { arena_[arena.key_factors + slot * num_heads + head] = dl; }
    // A score may be infinite where the weight is 0.
    if (dl != 0) { totals[0] += dl * score; }
    totals[1] += dl;
  }
  if (!one_round || heads > 1) { detail::butterfly(totals, map.segment); }
  if (lane == 0 && has_row) {
    arena_[arena.slopes + slot] = -totals[0] * inverse_width_ * inverse * inverse;
    if (call_.partials.bias != nullptr) { arena_[arena.bias + source] += totals[1]; }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
