// SPDX-License-Identifier: Apache-2.0
//! Backward of a call: lse and mix of one position again, when the forward did not keep them.
#pragma once

#include <mhar/block/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! One warp: the row's logit of every head.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::finish_logits(
    int slot, int row, std::int64_t position)
{
  const gradient_map& map = call_.map;
  const int num_heads = call_.extent.num_heads;
  const int thread = static_cast<int>(threadIdx.x) % 32;
  const int source = row + call_.num_null;
  const accumulate bias =
      call_.bias ? mhar::load<accumulate>(call_.bias.data, call_.bias.type, source) : accumulate{0};
  const accumulate inverse = rounds_keys() ? accumulate{1} : inverse_of(slot, row, position);
  const accumulate* const groups = parts_of(slot) + (rounds_keys() ? 3 * map.num_groups : 0);
  for (int first = 0; first < num_heads; first += (32 >> map.finish_shift)) {
    const int head = first + (thread >> map.finish_shift);
    const accumulate logit = fma(inverse, detail::head_sum(groups, map, head, num_heads), bias);
    if (head < num_heads && (thread & (map.finish_lanes - 1)) == 0) {
      arena_[call_.arena.logits + slot * num_heads + head] = logit;
    }
  }
}

//! In the mix, unlike in what a source's gradient takes from it, a logit that is not finite shows
//! even where there is one source.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::mix_weight_of(
    accumulate logit, accumulate lse) const -> accumulate
{
  return weight_of(logit, lse) +
         (lse == -cuda::std::numeric_limits<accumulate>::infinity() ? accumulate{0} : lse - lse);
}

//! One thread per head: the weights of a batch relative to the running maximum, and what the mix so
//! far shrinks by.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::advance_heads(
    int batch, std::int64_t position)
{
  constexpr accumulate nothing = -cuda::std::numeric_limits<accumulate>::infinity();
  const int num_heads = call_.extent.num_heads;
  const int rows = rows_in(batch);
  for (int head = static_cast<int>(threadIdx.x); head < num_heads; head += call_.map.num_threads) {
    accumulate* const logits = arena_ + call_.arena.logits + head;
    if (call_.lse != nullptr) {
      const accumulate lse = call_.lse[position * num_heads + head];
      for (int slot = 0; slot < rows; ++slot) {
        logits[slot * num_heads] = mix_weight_of(logits[slot * num_heads], lse);
      }
      head_memory(call_.arena.states, 2)[head] = 1;
      continue;
    }
    accumulate& maximum = head_memory(call_.arena.states, 0)[head];
    accumulate& sum = head_memory(call_.arena.states, 1)[head];
    accumulate largest = maximum;
    for (int slot = 0; slot < rows; ++slot) {
      largest = logits[slot * num_heads] > largest ? logits[slot * num_heads] : largest;
    }
    // While every logit is -inf nothing has weight, and inf - inf is not formed.
    const accumulate rescale =
        largest == nothing ? accumulate{1} : thread::exp_of(maximum - largest);
    sum *= rescale;
    for (int slot = 0; slot < rows; ++slot) {
      accumulate& logit = logits[slot * num_heads];
      logit = logit == nothing ? accumulate{0} : thread::exp_of(logit - largest);
      sum += logit;
    }
    maximum = largest;
    head_memory(call_.arena.states, 2)[head] = rescale;
  }
}

//! The mix and the states of the null source alone, or of nothing.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::start_mix(
    std::int64_t position)
{
  constexpr accumulate nothing = -cuda::std::numeric_limits<accumulate>::infinity();
  const gradient_arena& arena = call_.arena;
  const int num_heads = call_.extent.num_heads;
  for (int head = static_cast<int>(threadIdx.x); head < num_heads; head += call_.map.num_threads) {
    const accumulate logit = call_.num_null > 0 ? head_memory(arena.null_heads, 1)[head] : nothing;
    head_memory(arena.states, 0)[head] = logit;
    head_memory(arena.states, 1)[head] = logit == nothing ? 0 : 1;
  }
  for (int round = 0; round < num_rounds(); ++round) {
    for_columns(round, [&](int chunk, std::int64_t column, int count) {
      values mix{};
      if (call_.num_null > 0) {
        const int head = head_of(round);
        const accumulate logit = head_memory(arena.null_heads, 1)[head];
        const accumulate weight = call_.lse != nullptr
                                      ? mix_weight_of(logit, call_.lse[position * num_heads + head])
                                  : logit == nothing ? accumulate{0}
                                                     : 1 + (logit - logit);
        if (weight != 0) {
          const values source = load(call_.null_source, column, count, 0);
#pragma unroll
          for (int i = 0; i < width; ++i) { mix[i] = weight * source[i]; }
        }
      }
      gradient_.set(chunk, mix);
    });
  }
}

//! A first pass over the rows, as the forward makes it; the mix is left where do will be.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::recompute(
    std::int64_t position)
{
  const gradient_arena& arena = call_.arena;
  const int num_heads = call_.extent.num_heads;
  start_mix(position);
  for (int batch = 0; batch < num_batches_; ++batch) {
    const int first = batch * call_.rows_per_stage;
    const int rows = rows_in(batch);
    wait_for_rows();
    sum_batch(batch, position);
    __syncthreads();
    for (int slot = static_cast<int>(threadIdx.x) / 32; slot < rows;
         slot += call_.map.num_threads / 32) {
      finish_logits(slot, first + slot, position);
    }
    __syncthreads();
    advance_heads(batch, position);
    __syncthreads();
    for (int round = 0; round < num_rounds(); ++round) {
      const int head = head_of(round);
      for_columns(round, [&](int chunk, std::int64_t column, int count) {
        values mix = gradient_.get(chunk);
        const accumulate rescale = head_memory(arena.states, 2)[head];
#pragma unroll
        for (int i = 0; i < width; ++i) { mix[i] *= rescale; }
        for (int slot = 0; slot < rows; ++slot) {
          const accumulate weight = arena_[arena.logits + slot * num_heads + head];
          if (weight == 0) { continue; }
          const values s = row_values(slot, first + slot, position, chunk, column, count);
#pragma unroll
          for (int i = 0; i < width; ++i) { mix[i] = fma(weight, s[i], mix[i]); }
        }
        gradient_.set(chunk, mix);
      });
    }
    if constexpr (has_ring) {
      if (!keeps_rows()) {
        copy_step();
        close_step();
      }
    }
  }
  if (call_.lse != nullptr) { return; }

  for (int round = 0; round < num_rounds(); ++round) {
    for_columns(round, [&](int chunk, std::int64_t, int) {
      const accumulate sum = head_memory(arena.states, 1)[head_of(round)];
      const accumulate scale = sum == 0 ? accumulate{0} : 1 / sum;
      values mix = gradient_.get(chunk);
#pragma unroll
      for (int i = 0; i < width; ++i) { mix[i] *= scale; }
      gradient_.set(chunk, mix);
    });
  }
  for (int head = static_cast<int>(threadIdx.x); head < num_heads; head += call_.map.num_threads) {
    const accumulate sum = head_memory(arena.states, 1)[head];
    accumulate& maximum = head_memory(arena.states, 0)[head];
    maximum = sum == 0 ? -cuda::std::numeric_limits<accumulate>::infinity()
                       : maximum + thread::log_of(sum);
  }
}

}  // namespace block
MHAR_NAMESPACE_END
