// SPDX-License-Identifier: Apache-2.0
//! Backward of a call: do of one position, and the sums of it that all its rows need.
#pragma once

#include <mhar/block/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::mix_values(
    std::int64_t position, int chunk, std::int64_t column, int count) const -> values
{
  return call_.mix ? input_values(call_input::mix, position, column, count) : gradient_.get(chunk);
}

//! o, from memory or from the mix. A closed gate selects the partial, since 0 * mix need not be 0.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::combined_values(
    std::int64_t position, int chunk, std::int64_t column, int count) const -> values
{
  if (call_.combined) { return input_values(call_input::combined, position, column, count); }
  values result = load(call_.partial, position, column, count);
  if (gate_ != 0) {
    const values mix = mix_values(position, chunk, column, count);
#pragma unroll
    for (int i = 0; i < width; ++i) { result[i] = fma(gate_, mix[i], result[i]); }
  }
  return result;
}

//! Eq. 9, its two sums over the width:  ro = (mean(o^2) + eps)^-1/2  and  ro * mean(dy og o).
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::differentiate_norm(
    std::int64_t position)
{
  const gradient_map& map = call_.map;
  accumulate* const groups = arena_ + call_.arena.position;
  for (int round = 0; round < num_rounds(); ++round) {
    accumulate sums[2] = {0, 0};
    for_columns(round, [&](int chunk, std::int64_t column, int count) {
      values product = load(call_.output_weight, column, count, 1);
      const values upstream = input_values(call_input::output_gradient, position, column, count);
#pragma unroll
      for (int i = 0; i < width; ++i) { product[i] *= upstream[i]; }
      const values o = combined_values(position, chunk, column, count);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        if (i < count) {
          sums[0] = fma(o[i], o[i], sums[0]);
          sums[1] = fma(product[i], o[i], sums[1]);
        }
      }
    });
    store_groups(sums, round, groups, map.num_groups);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const auto d = static_cast<accumulate>(call_.extent.width);
    const accumulate squares = detail::dealt_sum(groups, map.num_groups);
    const accumulate products = detail::dealt_sum(groups + map.num_groups, map.num_groups);
    const accumulate inverse = thread::inverse_rms(squares, d, call_.output_eps);
    if (threadIdx.x == 0) {
      arena_[call_.arena.scalars + norm_inverse] = inverse;
      arena_[call_.arena.scalars + norm_projection] = inverse * products / d;
    }
  }
  __syncthreads();
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ bool route_gradient<T, Chunks, Capacity>::starts_plainly() const
{
  return call_.norm == output_norm::none && !call_.combined_gradient && !call_.partial_gradient &&
         call_.num_null == 0 && call_.output_gradient.type == element_of<T>::value &&
         call_.mix.type == element_of<T>::value && !recomputes();
}

//! What start_position does in calls that ask for nothing else.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::start_plain_position()
{
  accumulate sums[1] = {0};
  const auto* const upstream =
      reinterpret_cast<const T*>(input_memory(call_input::output_gradient)) + column_;
  const auto* const mix = reinterpret_cast<const T*>(input_memory(call_input::mix)) + column_;
  if (head_ < call_.extent.num_heads) {
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      const values gradient = held_values(upstream + chunk * step_);
      const values mixed = held_values(mix + chunk * step_);
#pragma unroll
      for (int i = 0; i < width; ++i) { sums[0] = fma(gradient[i], mixed[i], sums[0]); }
      gradient_.set(chunk, gradient);
    }
  }
  store_groups(sums, 0, arena_ + call_.arena.position, call_.map.num_groups);
}

//! do of the position, kept by its owners; sums by groups of <do, mix>, which is D, and of <do,
//! null source>.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::start_position(
    std::int64_t position)
{
  if constexpr (has_ring) {
    if (starts_plainly()) {
      start_plain_position();
      copy_inputs(position + 1);
      return;
    }
  }
  const bool normed = call_.norm == output_norm::rms;
  const accumulate inverse = normed ? arena_[call_.arena.scalars + norm_inverse] : accumulate{1};
  const accumulate projection =
      normed ? arena_[call_.arena.scalars + norm_projection] : accumulate{0};
  for (int round = 0; round < num_rounds(); ++round) {
    accumulate sums[2] = {0, 0};
    for_columns(round, [&](int chunk, std::int64_t column, int count) {
      values gradient = input_values(call_input::output_gradient, position, column, count);
      if (normed) {
        const values o = combined_values(position, chunk, column, count);
        const values weight = load(call_.output_weight, column, count, 1);
        values sum{};
        if (call_.partials.output_norm != nullptr) { sum = norm_sum_.get(chunk); }
#pragma unroll
        for (int i = 0; i < width; ++i) {
          const accumulate normalised = inverse * o[i];
          sum[i] = fma(gradient[i], normalised, sum[i]);
          gradient[i] = inverse * (gradient[i] * weight[i] - projection * normalised);
        }
        if (call_.partials.output_norm != nullptr) { norm_sum_.set(chunk, sum); }
      }
      if (call_.combined_gradient) {
        const values upstream =
            input_values(call_input::combined_gradient, position, column, count);
#pragma unroll
        for (int i = 0; i < width; ++i) { gradient[i] += upstream[i]; }
      }
      const values mix = mix_values(position, chunk, column, count);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        if (i < count) { sums[0] = fma(gradient[i], mix[i], sums[0]); }
      }
      if (call_.num_null > 0) {
        const values source = load(call_.null_source, column, count, 0);
#pragma unroll
        for (int i = 0; i < width; ++i) { sums[1] = fma(gradient[i], source[i], sums[1]); }
      }
      if (call_.partial_gradient) {
        const matrix& to = call_.partial_gradient;
        const std::int64_t index = position * to.position_stride + column;
        if constexpr (has_ring) {
          values sum = gradient;
          if (to.mode == update::accumulate) {
            const values before = load(to.data, to.type, index, count);
#pragma unroll
            for (int i = 0; i < width; ++i) { sum[i] += before[i]; }
          }
          if (to.type == element_of<T>::value) {
            thread::store_vector(static_cast<T*>(to.data) + index, thread::round_all<T>(sum));
          }
          else {
            detail::store_wide(static_cast<accumulate*>(to.data) + index, sum);
          }
        }
        else if (to.mode == update::accumulate) {
          detail::add_columns(to.data, to.type, index, count, gradient);
        }
        else {
          detail::store_columns(to.data, to.type, index, count, gradient);
        }
      }
      gradient_.set(chunk, gradient);
    });
    store_groups(sums, round, arena_ + call_.arena.position, call_.map.num_groups);
  }
  copy_inputs(position + 1);
}

//! One warp: D summed over heads for the gate, and the null source's weight and dl of every head.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::finish_position(
    std::int64_t position)
{
  const gradient_map& map = call_.map;
  const gradient_arena& arena = call_.arena;
  const int num_heads = call_.extent.num_heads;
  const int thread = static_cast<int>(threadIdx.x) % 32;
  const accumulate* const groups = arena_ + arena.position;
  accumulate gate_gradient = 0;
  accumulate bias_gradient = 0;
  for (int first = 0; first < num_heads; first += (32 >> map.finish_shift)) {
    const int head = first + (thread >> map.finish_shift);
    const accumulate dot = detail::head_sum(groups, map, head, num_heads);
    const accumulate product = call_.num_null > 0
                                   ? detail::head_sum(groups + map.num_groups, map, head, num_heads)
                                   : accumulate{0};
    if (head >= num_heads || (thread & (map.finish_lanes - 1)) != 0) { continue; }
    gate_gradient += dot;
    if (call_.num_null > 0) {
      const accumulate logit = head_memory(arena.null_heads, 1)[head];
      const accumulate weight = weight_of(logit, lse_of(position, head));
      const bool open = gate_ != 0 && weight != 0;
      const accumulate dl =
          open && num_sources_ > 1 ? gate_ * weight * (product - dot) : accumulate{0};
      head_memory(arena.null_heads, 2)[head] = open ? gate_ * weight : accumulate{0};
      head_memory(arena.null_heads, 3)[head] += dl;
      bias_gradient += dl;
    }
  }
  gate_gradient = detail::warp_sum(gate_gradient);
  bias_gradient = detail::warp_sum(bias_gradient);
  if (thread == 0) {
    arena_[arena.scalars + gate_sum] += gate_gradient;
    if (call_.partials.bias != nullptr && call_.num_null > 0) {
      arena_[arena.bias] += bias_gradient;
    }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
