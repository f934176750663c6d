// SPDX-License-Identifier: Apache-2.0
//! Backward of a call: the columns of a thread, and what is read of parameters and [P, d] matrices
//! in them.
#pragma once

#include <mhar/block/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ int route_gradient<T, Chunks, Capacity>::num_rounds() const
{
  return has_ring ? 1 : call_.map.num_rounds;
}

//! num_heads or more for a thread that is idle in this round.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ int route_gradient<T, Chunks, Capacity>::head_of(int round) const
{
  return has_ring ? head_ : head_ + round * call_.map.heads_at_once;
}

//! Among the groups of all heads. Found anew each time, since a register that is spilled for it costs
//! more: shared memory leaves little of the L1 cache.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ int route_gradient<T, Chunks, Capacity>::group_of(int round) const
{
  const gradient_map& map = call_.map;
  return (static_cast<int>(threadIdx.x) >> map.group_shift) +
         round * map.heads_at_once * map.groups_per_head;
}

//! Calls visitor(chunk, first column, number of columns) for the thread's chunks of one round.
template <class T, int Chunks, int Capacity>
template <class Visitor>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::for_columns(
    int round, Visitor visitor) const
{
  const gradient_map& map = call_.map;
  const int head = head_of(round);
  if (head >= call_.extent.num_heads) { return; }
  if constexpr (has_ring) {
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      visitor(chunk, std::int64_t{column_ + chunk * step_}, width);
    }
  }
  else {
    for (int i = 0; i < map.chunks_per_lane; ++i) {
      const int in_head = (lane_ + i * map.lanes_per_head) * width;
      if (in_head >= map.head_width) { break; }
      const int left = map.head_width - in_head;
      visitor(round * map.chunks_per_lane + i, std::int64_t{head} * map.head_width + in_head,
              left < width ? left : width);
    }
  }
}

//! Adds the thread's sums over its group; one lane writes each group's to groups[i * stride +
//! group].
template <class T, int Chunks, int Capacity>
template <std::size_t Count>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::store_groups(
    accumulate (&sums)[Count], int round, accumulate* groups, int stride) const
{
  const gradient_map& map = call_.map;
  detail::butterfly(sums, map.group);
  if (head_of(round) < call_.extent.num_heads && (threadIdx.x & (map.group - 1)) == 0) {
    accumulate* const to = groups + group_of(round);
#pragma unroll
    for (std::size_t i = 0; i < Count; ++i) { to[static_cast<int>(i) * stride] = sums[i]; }
  }
}

//! The same for the four sums of each of `Rows` rows, value v to parts[v * num_groups + group]:
//! lanes trade halves of them, so that a butterfly of eight values takes seven shuffles and not
//! forty.
template <class T, int Chunks, int Capacity>
template <int Rows>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::store_row_sums(
    const thread::vector<accumulate, 4 * Rows>& sums, int round, accumulate* parts) const
{
  constexpr int count = 4 * Rows;
  const gradient_map& map = call_.map;
  const bool valid = head_of(round) < call_.extent.num_heads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  accumulate* const to = parts + group_of(round);
  if (map.group >= 4) {
    const int half = map.group / 2;
    const int quarter = map.group / 4;
    const bool upper = (lane & half) != 0;
    const bool outer = (lane & quarter) != 0;
    const auto halves = detail::exchange_sum<count>(sums, half, upper);
    auto few = detail::exchange_sum<count / 2>(halves, quarter, outer);
    const int first = (upper ? count / 2 : 0) + (outer ? count / 4 : 0);
    for (int offset = quarter / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < Rows; ++i) {
        few[i] += __shfl_xor_sync(detail::all_lanes, few[i], offset);
      }
    }
    if (valid && (lane & (quarter - 1)) == 0) {
#pragma unroll
      for (int i = 0; i < Rows; ++i) { to[(first + i) * map.num_groups] = few[i]; }
    }
  }
  else {
    accumulate all[static_cast<std::size_t>(count)];
#pragma unroll
    for (int v = 0; v < count; ++v) { all[v] = sums[v]; }
    detail::butterfly(all, map.group);
#pragma unroll
    for (int v = 0; v < count; ++v) {
      if (valid && (lane & (map.group - 1)) == 0) { to[v * map.num_groups] = all[v]; }
    }
  }
}

//! Zeros where there is no array. The kernels with a ring are given arrays of two element types, at
//! 16-byte boundaries.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::load(const void* from,
                                                                          element type,
                                                                          std::int64_t index,
                                                                          int count) const -> values
{
  if constexpr (has_ring) {
    if (from == nullptr) { return values{}; }
    if (type == element_of<T>::value) {
      return thread::widen_all<accumulate>(
          thread::load_vector(static_cast<const T*>(from) + index));
    }
    return detail::load_wide<accumulate, width>(static_cast<const accumulate*>(from) + index);
  }
  else {
    return detail::load_columns<accumulate, width>(from, type, index, count);
  }
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::load(const const_matrix& from,
                                                                          std::int64_t position,
                                                                          std::int64_t column,
                                                                          int count) const -> values
{
  return load(from.data, from.type, position * from.position_stride + column, count);
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::matrix_of(
    call_input which) const -> const const_matrix&
{
  switch (which) {
    case call_input::output_gradient: return call_.output_gradient;
    case call_input::combined_gradient: return call_.combined_gradient;
    case call_input::mix: return call_.mix;
    default: return call_.combined;
  }
}

//! Zeros where there is no matrix.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::input_values(
    call_input which, std::int64_t position, std::int64_t column, int count) const -> values
{
  const const_matrix& from = matrix_of(which);
  if constexpr (has_ring) {
    if (from.data == nullptr) { return values{}; }
    return load(ring_ + call_.input_offsets[static_cast<int>(which)], from.type, column, count);
  }
  else {
    return load(from, position, column, count);
  }
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::load(
    const const_array& from, std::int64_t column, int count, accumulate absent) const -> values
{
  return detail::load_columns<accumulate, width>(from.data, from.type, column, count, absent);
}

}  // namespace block
MHAR_NAMESPACE_END
