// SPDX-License-Identifier: Apache-2.0
//! D, dalpha and the null source's parts of a call over narrow heads, without an output norm (eq. 9
//! to 11): a warp takes all heads of a position.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/turn_ring.cuh>
#include <mhar/block/detail/warp_barrier.cuh>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Warps walk over the block's positions (turn_ring), do and the mix on their way. The weight of the
//! null source does not depend on D, so one reading of do serves both. What the block adds goes to
//! chunk blockIdx.x of the partial sums.
//!
//! Threads      num_threads
//! Shared       shared_bytes
//! Barriers     one
//! Numerics     a position's bits do not depend on the others; sums over positions by place and warp,
//!              each in order
template <class T, int HeadWidth>
class output_gradient_heads
{
public:
  using ring = detail::turn_ring<T, HeadWidth>;
  static constexpr int num_threads = 32 * ring::num_warps;
  //! Heads of 160 columns do not fit in half the registers. For others that is enough, and the kernel behind
  //! prepares meanwhile.
  static constexpr int blocks_per_multiprocessor = HeadWidth > 128 ? 1 : 2;

  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int shared_bytes()
  {
    return ring::offset(sizeof(storage)) + ring::shared_bytes(2);
  }

  __device__ __forceinline__ output_gradient_heads(const output_gradient_problem<T>& call,
                                                   unsigned char* shared)
      : call_{call},
        shared_{*reinterpret_cast<storage*>(shared)},
        ring_{call.extent,
              2,
              {{call.output_gradient.data, call.output_gradient.position_stride},
               {call.mix.data, call.mix.position_stride}},
              shared + ring::offset(sizeof(storage))}
  {
    const matrix& copy = call.partial_gradient;
    const bool is_aligned =
        reinterpret_cast<std::uintptr_t>(copy.data) % 16 == 0 && copy.position_stride % 8 == 0;
    partial_gradient_ = {copy, is_aligned && copy.type == element_of<T>::value};
  }

  //! Reads parameters: before the kernels in front have ended.
  __device__ __forceinline__ void prepare()
  {
    load_null();
    gate_ = call_.sites.gate[call_.call];
    logit_gate_ = call_.sites.logit_gate[call_.call];
    null_logit_ =
        call_.sites.null_logit[std::int64_t{call_.call} * call_.extent.num_heads + ring_.head()];
  }

  __device__ __forceinline__ void run()
  {
    int position = ring_.begin();
    const int ahead = depth * ring_.step();
    float lse[depth];
#pragma unroll
    for (int x = 0; x < depth; ++x) {
      ring_.fetch(x, position + x * ring_.step());
      lse[x] = load_lse(position + x * ring_.step());
    }
    copy_sums();
    detail::end_copy_group();
    detail::ring_place slot;
    for (; position < ring_.count(); position += ring_.step()) {
      ring_.wait(slot.index, slot.phase);
      add(slot.index, position, lse[0]);
#pragma unroll
      for (int x = 0; x + 1 < depth; ++x) { lse[x] = lse[x + 1]; }
      lse[depth - 1] = load_lse(position + ahead);
      slot.advance(depth);
    }
    if (ring::lane() % 4 == 0) {
      shared_.logit_sums[ring::warp()][ring::place()] = logit_sum_;
      shared_.gate_sums[ring::warp()][ring::place()] = gate_sum_;
    }
    ring_.leave_columns(null_sums_);
    store();
  }

private:
  static constexpr int depth = ring::depth;
  static constexpr int vectors = ring::vectors;
  struct alignas(16) storage
  {
    float query_sums[ring::places * HeadWidth];  // of the chunk so far
    float null_sums[ring::places * HeadWidth];
    float gate_sum;
    float logit_sums[ring::num_warps][ring::places];
    float gate_sums[ring::num_warps][ring::places];
  };

  //! The lane's columns u of a call's parameters.
  static __device__ __forceinline__ void load_early(const float* from, float (&values)[8])
  {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto four = mhar::detail::bit_cast<float4>(detail::load_parameters(from + half * 4));
      values[half * 4] = four.x;
      values[half * 4 + 1] = four.y;
      values[half * 4 + 2] = four.z;
      values[half * 4 + 3] = four.w;
    }
  }
  __device__ __forceinline__ void load_null()
  {
    const std::int64_t first = call_.call * call_.extent.width;
    float squares = 0;
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      float query[8];
      load_early(call_.sites.null_source + first + ring_.column_of(u), null_[u]);
      load_early(call_.sites.query + first + ring_.column_of(u), query);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        squares = fmaf(null_[u][j], null_[u][j], squares);
        score_ = fmaf(null_[u][j], query[j], score_);
      }
    }
    score_ = detail::quad_sum(score_);
    float of_head[1] = {detail::quad_sum(squares)};
    ring_.sum_heads(of_head);
    inverse_ = thread::overflowed(of_head[0])
                   ? large_null_inverse()
                   : thread::inverse_rms(of_head[0], call_.extent.full_width(),
                                         static_cast<float>(call_.eps));
    asm volatile("" : "+f"(inverse_));  // found here
  }

  //! The inverse rms of a null source of very large elements; the whole warp finds the same.
  [[nodiscard]] __device__ __forceinline__ float large_null_inverse() const
  {
    float squares = 0;
#pragma unroll 1
    for (int u = 0; u < vectors; ++u) {
#pragma unroll 1
      for (int j = 0; j < 8; ++j) {
        const float scaled =
            thread::overflow_scale<float> *
            call_.sites.null_source[call_.call * call_.extent.width + ring_.column_of(u) + j];
        squares = fmaf(scaled, scaled, squares);
      }
    }
    float of_head[1] = {detail::quad_sum(squares)};
    ring_.sum_heads(of_head);
    return thread::scaled_inverse_rms(of_head[0], call_.extent.full_width());
  }

  [[nodiscard]] __device__ __forceinline__ float load_lse(int position) const
  {
    return ring_.exists(position) ? call_.lse[index_of(ring_.own_position(position))]
                                  : detail::minus_infinity<float>();
  }
  //! Of the lane's head.
  [[nodiscard]] __device__ __forceinline__ std::int64_t index_of(std::int64_t position) const
  {
    return position * call_.extent.num_heads + ring_.head();
  }

  //! Adds the turn of a slot, which then takes the warp's next but `depth`.
  __device__ __forceinline__ void add(int slot, int begin, float lse)
  {
    const bool in_place = call_.call_gradient.data == call_.output_gradient.data;
    const bool known = ring_.exists(begin);
    const std::int64_t position = ring_.own_position(begin);
    auto* const to = static_cast<T*>(call_.call_gradient.data) +
                     position * call_.call_gradient.position_stride + ring_.column_of(0);
    const auto gradients = ring_.at(slot, 0, begin);
    const auto mixes = ring_.at(slot, 1, begin);
    if (partial_gradient_.matrix && known) { copy_gradient(gradients, position); }
    const float weight = detail::weight_of(null_logit_, lse, logit_gate_);
    const float factor = weight != 0 ? gate_ * weight : 0.0f;
    float dots[2] = {0, 0};
    float products[2] = {0, 0};
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      const uint4 gradient = gradients[u];
      const uint4 mix = mixes[u];
      if (!in_place && known) { *reinterpret_cast<uint4*>(to + u * 32) = gradient; }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::uint32_t pair = detail::pair_of(mix, e);
        const float values[2] = {detail::first_of<T>(detail::pair_of(gradient, e)),
                                 detail::second_of<T>(detail::pair_of(gradient, e))};
        dots[0] = fmaf(values[0], detail::first_of<T>(pair), dots[0]);
        dots[1] = fmaf(values[1], detail::second_of<T>(pair), dots[1]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          products[j] = fmaf(values[j], null_[u][2 * e + j], products[j]);
          null_sums_[u][2 * e + j] = fmaf(factor, values[j], null_sums_[u][2 * e + j]);
        }
      }
    }
    ring_.replace(slot, begin + depth * ring_.step());
    const float dot = detail::quad_sum(dots[0] + dots[1]);
    const float product = detail::quad_sum(products[0] + products[1]);
    if (!known) { return; }
    gate_sum_ += dot;
    if (ring::lane() % 4 == 0) { call_.dot[index_of(position)] = dot; }
    if (weight != 0 && logit_gate_ != 0) { logit_sum_ += logit_gate_ * weight * (product - dot); }
  }

  //! do for the partial's producer.
  __device__ __forceinline__ void copy_gradient(const typename ring::columns& from,
                                                std::int64_t position) const
  {
#pragma unroll 1
    for (int u = 0; u < vectors; ++u) {
      float values[8];
      detail::load_state(reinterpret_cast<const T*>(from.at(u)), values);
      detail::update_columns(partial_gradient_, position, ring_.column_of(u), values);
    }
  }

  //! A thread copies what it will add to.
  __device__ __forceinline__ void copy_sums() const
  {
    const gradient_partials<float>& partials = call_.partials;
    const int k = static_cast<int>(threadIdx.x) * 8;
    if (threadIdx.x == 0 && partials.gate != nullptr) {
      detail::copy_async_4(&shared_.gate_sum, partials.gate + chunk());
    }
    if (k >= call_.extent.width) { return; }
    const std::int64_t at = chunk() * call_.extent.width + k;
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      if (partials.query != nullptr) {
        detail::copy_async(shared_.query_sums + k + half, partials.query + at + half);
      }
      if (partials.null_source != nullptr) {
        detail::copy_async(shared_.null_sums + k + half, partials.null_source + at + half);
      }
    }
  }
  //! The block's place among sums of one number each.
  [[nodiscard]] __device__ __forceinline__ std::int64_t chunk() const
  {
    return std::int64_t{blockIdx.x} * call_.partials.num_calls + call_.call;
  }

  //! What each block adds, by a thread per eight columns.
  __device__ __forceinline__ void store()
  {
    const shape& extent = call_.extent;
    const gradient_partials<float>& partials = call_.partials;
    const int k = static_cast<int>(threadIdx.x) * 8;
    const std::int64_t from = call_.call * extent.width + k;
    float null[8];
    float query[8];
    if (k < extent.width) {
      detail::load_state(call_.sites.null_source + from, null);
      detail::load_state(call_.sites.query + from, query);
    }
    detail::wait_for_copy_groups<0>();
    __syncthreads();
    const float logit_sum = ring_.sum_places(shared_.logit_sums);
    float of_heads[3] = {logit_sum * (inverse_ * score_), ring_.sum_places(shared_.gate_sums),
                         logit_sum};
    ring_.sum_heads(of_heads);
    const float factor = -inverse_ * of_heads[0] / static_cast<float>(extent.full_width());
    if (partials.gate != nullptr && threadIdx.x == 0) {
      partials.gate[chunk()] = shared_.gate_sum + of_heads[1];
    }
    if (partials.bias != nullptr && threadIdx.x == 0) {
      partials.bias[chunk() * (partials.bias_stride + 1)] += of_heads[2];
    }
    const float of_head =
        __shfl_sync(0xffffffffu, logit_sum, (min)(k / HeadWidth, extent.num_heads - 1) * 4);
    if (k >= extent.width) { return; }
    const std::int64_t at = chunk() * extent.width + k;
    float sums[8];
    if (partials.query != nullptr) {
      detail::load_state(shared_.query_sums + k, sums);
#pragma unroll
      for (int j = 0; j < 8; ++j) { sums[j] += of_head * (inverse_ * null[j]); }
      detail::store_vector(partials.query + at, sums);
    }
    if (partials.null_source != nullptr) {
      float added[8] = {};
      detail::load_state(shared_.null_sums + k, sums);
      ring_.add_columns(k, added);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sums[j] += fmaf(inverse_ * of_head, query[j], added[j]) + factor * (inverse_ * null[j]);
      }
      detail::store_vector(partials.null_source + at, sums);
    }
  }

  const output_gradient_problem<T>& call_;
  storage& shared_;
  ring ring_;
  detail::column_matrix<T, matrix> partial_gradient_;
  float gate_ = 1;
  float logit_gate_ = 1;
  float null_logit_ = 0;
  float inverse_ = 0;  // inverse rms of the null source
  float score_ = 0;
  float logit_sum_ = 0;
  float gate_sum_ = 0;
  float null_[static_cast<std::size_t>(vectors)][8];
  float null_sums_[static_cast<std::size_t>(vectors)][8] = {};
};

}  // namespace block
MHAR_NAMESPACE_END
