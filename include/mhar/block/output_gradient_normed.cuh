// SPDX-License-Identifier: Apache-2.0
//! The gradient of a call's output through its norm, D and dalpha (eq. 9 to 11) over narrow heads: a
//! warp takes all heads of a position.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/turn_ring.cuh>
#include <mhar/block/detail/warp_barrier.cuh>
#include <mhar/block/output_gradient_columns.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Warps walk over the block's positions (turn_ring), dy, o and the mix, if it is another matrix, on
//! their way. Both sums over a position, of its squares and for its mean, are found at once. What the
//! block adds goes to chunk blockIdx.x of the partial sums.
//!
//! Threads      num_threads
//! Shared       shared_bytes
//! Barriers     one
//! Numerics     a position's bits do not depend on the others; sums over positions by place and warp,
//!              each in order
template <class T, int HeadWidth>
class output_gradient_normed
{
public:
  using ring = detail::turn_ring<T, HeadWidth>;
  static constexpr int num_threads = 32 * ring::num_warps;
  //! A block prepares nothing while the kernel in front runs: all registers are one block's.
  static constexpr int blocks_per_multiprocessor = 1;

  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int num_matrices(
      const output_gradient_columns_params<T>& call)
  {
    return call.dot != nullptr && !call.mix_is_combined ? 3 : 2;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int shared_bytes(
      const output_gradient_columns_params<T>& call)
  {
    return ring::offset(sizeof(storage)) + ring::shared_bytes(num_matrices(call));
  }

  __device__ __forceinline__ output_gradient_normed(const output_gradient_columns_params<T>& call,
                                                    unsigned char* shared)
      : call_{call},
        shared_{*reinterpret_cast<storage*>(shared)},
        ring_{{call.num_positions, call.width, call.num_heads},
              num_matrices(call),
              {{call.output_gradient.data, call.output_gradient.position_stride},
               {call.combined.data, call.combined.position_stride},
               {call.mix.data, call.mix.position_stride}},
              shared + ring::offset(sizeof(storage))},
        inverse_width_{1.0f / static_cast<float>(call.width)}
  {
    asm volatile("" : "+f"(inverse_width_));
  }

  __device__ __forceinline__ void run()
  {
    int position = ring_.begin();
#pragma unroll
    for (int x = 0; x < depth; ++x) { ring_.fetch(x, position + x * ring_.step()); }
    copy_sums();
    detail::end_copy_group();
    load_weights();
    detail::ring_place slot;
    for (; position < ring_.count(); position += ring_.step()) {
      ring_.wait(slot.index, slot.phase);
      differentiate(slot.index, position);
      slot.advance(depth);
    }
    if (ring::lane() % 4 == 0) { shared_.gate_sums[ring::warp()][ring::place()] = gate_sum_; }
    ring_.leave_columns(norm_sums_);
    __syncthreads();
    store();
  }

private:
  static constexpr int depth = ring::depth;
  static constexpr int vectors = ring::vectors;
  struct alignas(16) storage
  {
    float norm_sums[ring::places * HeadWidth];  // of the chunk so far
    float gate_sum;
    float gate_sums[ring::num_warps][ring::places];
  };
  struct position_sums
  {
    float squares;   // of o
    float products;  // of o and the gradient of what the weight multiplies
  };

  //! A thread copies what it will add to.
  __device__ __forceinline__ void copy_sums() const
  {
    const int k = static_cast<int>(threadIdx.x) * 8;
    if (threadIdx.x == 0 && call_.gate_sums != nullptr) {
      detail::copy_async_4(&shared_.gate_sum, call_.gate_sums + blockIdx.x * call_.gate_stride);
    }
    if (call_.norm_sums != nullptr && k < call_.width) {
      const float* const from = call_.norm_sums + blockIdx.x * call_.chunk_stride + k;
      detail::copy_async(shared_.norm_sums + k, from);
      detail::copy_async(shared_.norm_sums + k + 4, from + 4);
    }
  }

  //! All are on their way before one is waited for.
  __device__ __forceinline__ void load_weights()
  {
    const void* const from = call_.norm_weight.data;
    if (from == nullptr) {
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
#pragma unroll
        for (int j = 0; j < 8; ++j) { weights_[u][j] = 1; }
      }
    }
    else if (call_.norm_weight.is_float) {
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
        detail::load_state(static_cast<const float*>(from) + ring_.column_of(u), weights_[u]);
      }
    }
    else {
      uint4 loaded[static_cast<std::size_t>(vectors)];
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
        loaded[u] = detail::load_vector(static_cast<const T*>(from) + ring_.column_of(u));
      }
#pragma unroll
      for (int u = 0; u < vectors; ++u) { unpack(loaded[u], weights_[u]); }
    }
  }

  static __device__ __forceinline__ void unpack(const uint4& vector, float (&values)[8])
  {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      values[2 * e] = detail::first_of<T>(detail::pair_of(vector, e));
      values[2 * e + 1] = detail::second_of<T>(detail::pair_of(vector, e));
    }
  }
  //! Of o under a scale.
  [[nodiscard]] __device__ __forceinline__ position_sums
  sum_position(const typename ring::columns& gradients, const typename ring::columns& outputs,
               float scale) const
  {
    float squares[2] = {0, 0};
    float products[2] = {0, 0};
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      float gradient[8];
      float output[8];
      unpack(gradients[u], gradient);
      unpack(outputs[u], output);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float scaled = scale * output[j];
        squares[j % 2] = fmaf(scaled, scaled, squares[j % 2]);
        products[j % 2] = fmaf(gradient[j] * weights_[u][j], scaled, products[j % 2]);
      }
    }
    float sums[2] = {detail::quad_sum(squares[0] + squares[1]),
                     detail::quad_sum(products[0] + products[1])};
    ring_.sum_heads(sums);
    return {sums[0], sums[1]};
  }

  //! The turn of a slot, which then takes the warp's next but `depth`.
  __device__ __forceinline__ void differentiate(int slot, int begin)
  {
    const bool known = ring_.exists(begin);
    const std::int64_t position = ring_.own_position(begin);
    const auto gradients = ring_.at(slot, 0, begin);
    const auto outputs = ring_.at(slot, 1, begin);
    const auto mixes = ring_.at(slot, num_matrices(call_) - 1, begin);
    const position_sums sums = sum_position(gradients, outputs, 1.0f);
    float inverse = rsqrtf(fmaf(sums.squares, inverse_width_, call_.norm_eps));
    float slope = inverse * sums.products * inverse_width_;
    if (__any_sync(0xffffffffu, thread::overflowed(sums.squares))) {
      constexpr float scale = thread::overflow_scale<float>;
      const position_sums scaled = sum_position(gradients, outputs, scale);
      if (thread::overflowed(sums.squares)) {
        const float of_scaled = rsqrtf(scaled.squares * inverse_width_);
        inverse = scale * of_scaled;
        slope = of_scaled * scaled.products * inverse_width_;
      }
    }
    asm volatile("" ::: "memory");  // read again: they do not fit in registers
    T* const to = call_.call_gradient + position * call_.call_stride + ring_.column_of(0);
    const detail::vector_matrix<T, void>& partial_gradient = call_.partial_gradient;
    T* const to_partial = static_cast<T*>(partial_gradient.data) +
                          position * partial_gradient.position_stride + ring_.column_of(0);
    float dots[2] = {0, 0};
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      float gradient[8];
      float output[8];
      unpack(gradients[u], gradient);
      unpack(outputs[u], output);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float normalised = inverse * output[j];
        if (known) { norm_sums_[u][j] = fmaf(gradient[j], normalised, norm_sums_[u][j]); }
        gradient[j] = inverse * (gradient[j] * weights_[u][j] - slope * normalised);
      }
      uint4 rounded;
      rounded.x = detail::make_pair<T>(gradient[0], gradient[1]);
      rounded.y = detail::make_pair<T>(gradient[2], gradient[3]);
      rounded.z = detail::make_pair<T>(gradient[4], gradient[5]);
      rounded.w = detail::make_pair<T>(gradient[6], gradient[7]);
      if (known) { *reinterpret_cast<uint4*>(to + u * 32) = rounded; }
      if (known && partial_gradient.data != nullptr) {
        *reinterpret_cast<uint4*>(to_partial + u * 32) = rounded;
      }
      const uint4 mix = mixes[u];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::uint32_t pair = detail::pair_of(rounded, e);
        const std::uint32_t of_mix = detail::pair_of(mix, e);
        dots[0] = fmaf(detail::first_of<T>(pair), detail::first_of<T>(of_mix), dots[0]);
        dots[1] = fmaf(detail::second_of<T>(pair), detail::second_of<T>(of_mix), dots[1]);
      }
    }
    ring_.replace(slot, begin + depth * ring_.step());
    const float dot = detail::quad_sum(dots[0] + dots[1]);
    if (call_.dot == nullptr || !known) { return; }
    gate_sum_ += dot;
    if (ring::lane() % 4 == 0) { call_.dot[position * call_.num_heads + ring_.head()] = dot; }
  }

  __device__ __forceinline__ void store() const
  {
    detail::wait_for_copy_groups<0>();
    float gate_sum[1] = {ring_.sum_places(shared_.gate_sums)};
    ring_.sum_heads(gate_sum);
    if (call_.gate_sums != nullptr && threadIdx.x == 0) {
      call_.gate_sums[blockIdx.x * call_.gate_stride] = shared_.gate_sum + gate_sum[0];
    }
    const int k = static_cast<int>(threadIdx.x) * 8;
    if (call_.norm_sums == nullptr || k >= call_.width) { return; }
    float sums[8];
    detail::load_state(shared_.norm_sums + k, sums);
    ring_.add_columns(k, sums);
    detail::store_vector(call_.norm_sums + blockIdx.x * call_.chunk_stride + k, sums);
  }

  const output_gradient_columns_params<T>& call_;
  storage& shared_;
  ring ring_;
  float inverse_width_;
  float gate_sum_ = 0;
  float weights_[static_cast<std::size_t>(vectors)][8];
  float norm_sums_[static_cast<std::size_t>(vectors)][8] = {};
};

}  // namespace block
MHAR_NAMESPACE_END
