// SPDX-License-Identifier: Apache-2.0
//! Backward of a call: from the sums of rows to the factors of their gradients, by few lanes while
//! the others wait.
#pragma once

#include <mhar/block/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::lse_of(std::int64_t position,
                                                                            int head) const
    -> accumulate
{
  if (call_.lse == nullptr) { return head_memory(call_.arena.states, 0)[head]; }
  return has_ring ? statistics_of(position)[head]
                  : call_.lse[position * call_.extent.num_heads + head];
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::given_inverse(
    int row, std::int64_t position) const -> accumulate
{
  return has_ring ? statistics_of(position)[call_.extent.num_heads + row]
                  : call_.inverse_rms[row * call_.extent.num_positions + position];
}

//! The inverse rms of a row of very large elements, read again from global memory. One warp calls;
//! every lane gets it.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::large_row_inverse(
    int row, std::int64_t position) const -> accumulate
{
  constexpr accumulate scale = thread::overflow_scale<accumulate>;
  const T* const from = call_.rows.at(row, position);
  accumulate sum = 0;
#pragma unroll 1
  for (std::int64_t i = threadIdx.x % 32; i < call_.extent.width; i += 32) {
    const accumulate value = scale * widen<accumulate>(from[i]);
    sum = fma(value, value, sum);
  }
  return thread::scaled_inverse_rms(detail::warp_sum(sum), call_.extent.width);
}

//! The part of a row's sum of squares that lies in heads [first, ...), a segment's lanes taking
//! them in turn.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::squares_of_later_heads(
    const accumulate* groups, int first, int sub) const -> accumulate
{
  const gradient_map& map = call_.map;
  accumulate sum[1] = {0};
  for (int head = first; head < call_.extent.num_heads; head += map.segment >> map.finish_shift) {
    const int start = 2 * map.num_groups + head * map.groups_per_head;
    for (int i = sub; i < map.groups_per_head; i += map.finish_lanes) {
      sum[0] += groups[start + i];
    }
  }
  detail::butterfly(sum, map.finish_lanes);
  return sum[0];
}

//! The row's inverse rms, given or from the sum of its groups. One warp calls; every lane gets it.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::inverse_of(
    int slot, int row, std::int64_t position) const -> accumulate
{
  if (call_.inverse_rms != nullptr) { return given_inverse(row, position); }
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

//! The rows of a batch: their factors in ds = a do + b w + c s, per head (eq. 11 to 14). A segment
//! of a warp's lanes finishes one row, `finish_lanes` of them a head; all lanes of a warp go the
//! same way. Returns whether all sums of this thread are finite; then so is every element of s, do
//! and w that went into them.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ bool route_gradient<T, Chunks, Capacity>::finish_rows(
    int batch, std::int64_t position)
{
  bool finite = true;
  const gradient_map& map = call_.map;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int in_warp = (static_cast<int>(threadIdx.x) % 32) >> map.segment_shift;
  const int step = (map.num_threads / 32) << map.rows_shift;
  for (int first = warp << map.rows_shift; first < rows_in(batch); first += step) {
    finite &= finish_segment(batch, first, first + in_warp, position);
  }
  return finite;
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ bool route_gradient<T, Chunks, Capacity>::finish_segment(
    int batch, int first_slot, int slot, std::int64_t position)
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
  detail::butterfly(sums, map.finish_lanes);
  accumulate inverse = 1;
  if (call_.inverse_rms != nullptr) {
    if (has_row) { inverse = given_inverse(row, position); }
  }
  else {
    // Every lane of a head holds the head's sum: only the heads are left to add.
    accumulate squares = sums[2];
    if (num_heads > heads) { squares += squares_of_later_heads(groups, own_head + heads, sub); }
    for (int offset = map.finish_lanes; offset < map.segment; offset *= 2) {
      squares += __shfl_xor_sync(detail::all_lanes, squares, offset);
    }
    // Rounded as in the forward pass: a weight is exp(logit - lse), and lse comes from there.
    inverse = thread::inverse_sqrt(squares * inverse_width_ + call_.eps);
    if (__any_sync(detail::all_lanes, thread::overflowed(squares))) {
      for (int k = 0; k < 32 >> map.segment_shift; ++k) {
        if (first_slot + k >= rows_in(batch)) { break; }
        const accumulate found =
            large_row_inverse(batch * call_.rows_per_stage + first_slot + k, position);
        if (thread::overflowed(squares) && slot == first_slot + k) { inverse = found; }
      }
    }
  }
  const accumulate bias = call_.bias && has_row
                              ? mhar::load<accumulate>(call_.bias.data, call_.bias.type, source)
                              : accumulate{0};

  accumulate totals[2] = {0, 0};  // of dl * u and of dl
  bool finite = true;
  for (int first_head = 0; first_head < num_heads; first_head += heads) {
    const int head = first_head + own_head;
    if (first_head > 0) {
#pragma unroll
      for (int i = 0; i < 5; ++i) { sums[i] = 0; }
      if (head < num_heads) { add_groups(head, sums); }
      detail::butterfly(sums, map.finish_lanes);
    }
    if (head >= num_heads || sub != 0 || !has_row) { continue; }
    finite &= fabs(sums[0] + sums[1] + sums[2]) < cuda::std::numeric_limits<accumulate>::infinity();
    const accumulate score = inverse * sums[0];
    // Rounded once, as in the forward pass, and in every kernel.
    const accumulate logit = rounds_keys() ? sums[4] + bias : fma(inverse, sums[0], bias);
    const accumulate weight = weight_of(logit, lse_of(position, head));
    const bool open = gate_ != 0 && weight != 0;
    const accumulate dl =
        open && num_sources_ > 1 ? gate_ * weight * (sums[1] - sums[3]) : accumulate{0};
    thread::vector<accumulate, 2> factors;
    factors[0] = open ? gate_ * weight : accumulate{0};
    factors[1] = dl != 0 ? inverse * dl : accumulate{0};
    thread::store_vector(arena_ + arena.factors + (slot * num_heads + head) * 2, factors);
    if (rounds_keys()) { arena_[arena.key_factors + slot * num_heads + head] = dl; }
    // A score may be infinite where the weight is 0, and an inverse rms not a number.
    if (dl != 0) { totals[0] += dl * score; }
    totals[1] += dl;
  }
  detail::butterfly(totals, map.segment);
  if (lane == 0 && has_row) {
    const accumulate slope =
        totals[0] != 0 ? -totals[0] * inverse_width_ * inverse * inverse : accumulate{0};
    arena_[arena.slopes + slot] = slope;
    if (call_.partials.bias != nullptr) { arena_[arena.bias + source] += totals[1]; }
  }
  return finite;
}

}  // namespace block
MHAR_NAMESPACE_END
