// SPDX-License-Identifier: Apache-2.0
//! Backward of a call: what a block does once, and for each chunk of positions.
#pragma once

#include <mhar/block/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T, int Chunks, int Capacity>
__device__ __forceinline__
route_gradient<T, Chunks, Capacity>::route_gradient(const params& call, unsigned char* shared)
    : call_{call},
      ring_{shared},
      // Known to be shared memory where it can only be that.
      arena_{!has_ring && call.arena_memory != nullptr
                 ? call.arena_memory + std::int64_t{blockIdx.x} * call.arena.size
                 : reinterpret_cast<accumulate*>(shared + call.ring_bytes)},
      column_{0},
      step_{call.map.lanes_per_head * width},
      lane_{static_cast<int>(threadIdx.x) % call.map.lanes_per_head},
      head_{static_cast<int>(threadIdx.x) / call.map.lanes_per_head},
      num_batches_{
          call.num_rows == 0 ? 1 : (call.num_rows + call.rows_per_stage - 1) / call.rows_per_stage},
      num_sources_{call.num_rows + call.num_null},
      gate_{call.gate ? mhar::load<accumulate>(call.gate.data, call.gate.type, 0) : accumulate{1}},
      inverse_width_{1 / static_cast<accumulate>(call.extent.width)},
      weight_{column_memory(column_array::weight), call.map.num_threads},
      gradient_{column_memory(column_array::gradient), call.map.num_threads},
      weight_sum_{column_memory(column_array::weight_sum), call.map.num_threads},
      null_sum_{column_memory(column_array::null_source), call.map.num_threads},
      norm_sum_{column_memory(column_array::output_norm), call.map.num_threads}
{
  // Threads past the last head of a round have nothing to do in it.
  if (head_ >= call.map.heads_at_once) { head_ = call.extent.num_heads; }
  column_ = head_ * call.map.head_width + lane_ * width;
  num_steps_ = recomputes() && !keeps_rows() ? 2 * num_batches_ : num_batches_;
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::run(int first_chunk,
                                                                         int last_chunk)
{
  // Balanced: any two chunks differ by at most one position.
  const std::int64_t positions = call_.extent.num_positions;
  const std::int64_t each = positions / call_.partials.num_chunks;
  const std::int64_t longer = positions % call_.partials.num_chunks;
  const auto start_of = [&](std::int64_t chunk) {
    return chunk * each + (chunk < longer ? chunk : longer);
  };
  start_ring(start_of(first_chunk), start_of(last_chunk));
  fold_weight();
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    const std::int64_t end = start_of(chunk + 1);
    for (std::int64_t position = start_of(chunk); position < end; ++position) {
      wait_for_inputs();
      if (recomputes()) { recompute(position); }
      if (call_.norm == output_norm::rms) { differentiate_norm(position); }
      start_position(position);
      differentiate(position);
    }
    flush(chunk);
  }
}

//! w = scale * q * g, and everything that is summed over positions set to 0.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::fold_weight()
{
  const gradient_arena& arena = call_.arena;
  for (int round = 0; round < num_rounds(); ++round) {
    for_columns(round, [&](int chunk, std::int64_t column, int count) {
      const values query = load(call_.query, column, count, 0);
      const values norm = load(call_.norm_weight, column, count, 1);
      values folded;
#pragma unroll
      for (int i = 0; i < width; ++i) { folded[i] = call_.scale * query[i] * norm[i]; }
      weight_.set(chunk, folded);
      weight_sum_.set(chunk, values{});
      if (call_.partials.null_source != nullptr) { null_sum_.set(chunk, values{}); }
      if (call_.partials.output_norm != nullptr) { norm_sum_.set(chunk, values{}); }
    });
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (call_.partials.bias != nullptr) {
    for (int i = thread; i < num_sources_; i += call_.map.num_threads) {
      arena_[arena.bias + i] = 0;
    }
  }
  if (thread == 0) { arena_[arena.scalars + gate_sum] = 0; }
  if (call_.num_null > 0) { score_null(); }
}

//! The inverse rms of a null source of very large elements, read once more. One warp calls; every lane
//! gets it.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::large_null_inverse() const
    -> accumulate
{
  accumulate sum = 0;
#pragma unroll 1
  for (std::int64_t i = threadIdx.x % 32; i < call_.extent.width; i += 32) {
    const accumulate value =
        thread::overflow_scale<accumulate> *
        mhar::load<accumulate>(call_.null_source.data, call_.null_source.type, i);
    sum = fma(value, value, sum);
  }
  return thread::scaled_inverse_rms(detail::warp_sum(sum), call_.extent.width);
}

//! The null source's inverse rms, and its score and logit per head: the same at every position.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::score_null()
{
  const gradient_map& map = call_.map;
  const gradient_arena& arena = call_.arena;
  const int thread = static_cast<int>(threadIdx.x);
  for (int round = 0; round < num_rounds(); ++round) {
    accumulate sums[2] = {0, 0};
    for_columns(round, [&](int chunk, std::int64_t column, int count) {
      const values source = load(call_.null_source, column, count, 0);
      const values weight = weight_.get(chunk);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        sums[0] = fma(weight[i], source[i], sums[0]);
        sums[1] = fma(source[i], source[i], sums[1]);
      }
    });
    store_groups(sums, round, parts_of(0), map.num_groups);
  }
  __syncthreads();
  if (thread < 32) {
    const accumulate squares = detail::dealt_sum(parts_of(0) + map.num_groups, map.num_groups);
    const accumulate inverse = thread::overflowed(squares)
                                   ? large_null_inverse()
                                   : thread::inverse_rms(squares, call_.extent.width, call_.eps);
    if (thread == 0) { arena_[arena.scalars + null_inverse] = inverse; }
    const accumulate bias =
        call_.bias ? mhar::load<accumulate>(call_.bias.data, call_.bias.type, 0) : accumulate{0};
    for (int first = 0; first < call_.extent.num_heads; first += (32 >> map.finish_shift)) {
      const int head = first + (thread >> map.finish_shift);
      const accumulate dot = detail::head_sum(parts_of(0), map, head, call_.extent.num_heads);
      if (head < call_.extent.num_heads && (thread & (map.finish_lanes - 1)) == 0) {
        head_memory(arena.null_heads, 0)[head] = inverse * dot;
        head_memory(arena.null_heads, 1)[head] = fma(inverse, dot, bias);
        head_memory(arena.null_heads, 3)[head] = 0;
      }
    }
  }
  __syncthreads();
  if (!rounds_keys()) { return; }

  for (int round = 0; round < num_rounds(); ++round) {
    accumulate sums[1] = {0};
    const accumulate inverse = arena_[arena.scalars + null_inverse];
    for_columns(round, [&](int chunk, std::int64_t column, int count) {
      values key = load(call_.null_source, column, count, 0);
#pragma unroll
      for (int i = 0; i < width; ++i) { key[i] = widen<accumulate>(round_to<T>(inverse * key[i])); }
      sums[0] += key_product(key, weight_.get(chunk), column, count);
    });
    store_groups(sums, round, parts_of(0), map.num_groups);
  }
  __syncthreads();
  if (thread < 32) {
    const accumulate bias =
        call_.bias ? mhar::load<accumulate>(call_.bias.data, call_.bias.type, 0) : accumulate{0};
    for (int first = 0; first < call_.extent.num_heads; first += (32 >> map.finish_shift)) {
      const int head = first + (thread >> map.finish_shift);
      const accumulate dot = detail::head_sum(parts_of(0), map, head, call_.extent.num_heads);
      if (head < call_.extent.num_heads && (thread & (map.finish_lanes - 1)) == 0) {
        head_memory(arena.null_heads, 1)[head] = dot + bias;
      }
    }
  }
  __syncthreads();
}

//! Writes the sums of a chunk of positions and starts new ones. The null source's share is added
//! here, as sums over positions: its row, score and inverse rms are the same at all of them.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::flush(int chunk)
{
  const gradient_arena& arena = call_.arena;
  const call_partials<accumulate>& partials = call_.partials;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t start = chunk * call_.extent.width;

  accumulate slope = 0;
  accumulate inverse = 0;
  if (partials.null_source != nullptr) {
    for (int head = 0; head < call_.extent.num_heads; ++head) {
      const accumulate sum = head_memory(arena.null_heads, 3)[head];
      if (sum != 0) { slope += sum * head_memory(arena.null_heads, 0)[head]; }
    }
  }
  if (call_.num_null > 0) { inverse = arena_[arena.scalars + null_inverse]; }
  // The inverse rms of a null source that is not finite is 0 or not a number.
  if (slope != 0) { slope = slope / static_cast<accumulate>(call_.extent.width) * inverse; }

  for (int round = 0; round < num_rounds(); ++round) {
    for_columns(round, [&](int own, std::int64_t column, int count) {
      values source{};
      accumulate dl = 0;
      if (call_.num_null > 0) {
        source = load(call_.null_source, column, count, 0);
        dl = head_memory(arena.null_heads, 3)[head_of(round)];
      }
      if (wants_weight()) {
        values sum = weight_sum_.get(own);
        if (dl != 0) {
#pragma unroll
          for (int i = 0; i < width; ++i) {
            const accumulate key = rounds_keys()
                                       ? widen<accumulate>(round_to<T>(inverse * source[i]))
                                       : inverse * source[i];
            sum[i] = fma(dl, key, sum[i]);
          }
        }
        detail::store_columns(partials.query, element_of<accumulate>::value, start + column, count,
                              sum);
        weight_sum_.set(own, values{});
      }
      if (partials.null_source != nullptr) {
        values sum = null_sum_.get(own);
        const values weight = weight_.get(own);
#pragma unroll
        for (int i = 0; i < width; ++i) {
          if (dl != 0) { sum[i] = fma(inverse * dl, weight[i], sum[i]); }
          if (slope != 0) { sum[i] = fma(-slope, inverse * source[i], sum[i]); }
        }
        detail::store_columns(partials.null_source, element_of<accumulate>::value, start + column,
                              count, sum);
        null_sum_.set(own, values{});
      }
      if (partials.output_norm != nullptr) {
        detail::store_columns(partials.output_norm, element_of<accumulate>::value, start + column,
                              count, norm_sum_.get(own));
        norm_sum_.set(own, values{});
      }
    });
  }
  __syncthreads();
  if (partials.bias != nullptr) {
    for (int i = thread; i < num_sources_; i += call_.map.num_threads) {
      partials.bias[std::int64_t{chunk} * num_sources_ + i] = arena_[arena.bias + i];
      arena_[arena.bias + i] = 0;
    }
  }
  if (partials.gate != nullptr && thread == 0) {
    partials.gate[chunk] = arena_[arena.scalars + gate_sum];
    arena_[arena.scalars + gate_sum] = 0;
  }
  if (call_.num_null > 0) {
    for (int head = thread; head < call_.extent.num_heads; head += call_.map.num_threads) {
      head_memory(arena.null_heads, 3)[head] = 0;
    }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
