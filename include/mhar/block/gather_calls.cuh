// SPDX-License-Identifier: Apache-2.0
//! A backward pass over a few calls: their gradients stay in registers, and a warp serves eight
//! positions of one head.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/operand_scales.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/sweep_tensor_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! All heads of eight positions at a time: tiles blockIdx.x, blockIdx.x + gridDim.x, ... Lane
//! 4*i + q of warp h holds columns 8q ... 8q+7 of every 32 of head h of position i, of the calls'
//! gradients for the whole tile and of one row after the other.
//!
//! <w, s> and dw are products on tensor cores (dw over the eight positions: the row is transposed
//! in registers); the rest is a few multiply-adds per element. What the block adds to dw goes to
//! chunk blockIdx.x of the partial sums.
//!
//! Threads      32 per head
//! Barriers     two per tile, one where its only row is finished
//! Shared       shared_bytes
//! Numerics     calls in order; a position's bits do not depend on the number of rows
template <class T, int HeadWidth, int Calls, class State>
class gather_calls
{
public:
  static constexpr int max_heads = 8;
  static constexpr int max_rows = 64;

  //! Per warp: the queries in float and as operand, its share of dw; then two tiles' head sums.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int shared_bytes(int num_heads, int num_rows)
  {
    return (num_heads * 3 * Calls * HeadWidth + 2 * num_rows * 8 * num_heads) * 4;
  }

  __device__ __forceinline__ gather_calls(const gather_tensor_params<T>& pass, float* shared)
      : pass_{pass},
        head_{static_cast<int>(threadIdx.x / 32)},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4}
  {
    query_ = shared + head_ * 3 * Calls * HeadWidth;
    image_ = reinterpret_cast<uint4*>(query_ + Calls * HeadWidth);
    query_sums_ = query_ + 2 * Calls * HeadWidth;
    head_sums_ = shared + pass.num_heads * 3 * Calls * HeadWidth;
    other_sums_ = pass.num_rows * 8 * pass.num_heads;
    column_ = head_ * HeadWidth + quad_ * 8;
  }

  //! Reads parameters only: before the kernels in front have ended.
  __device__ __forceinline__ void prepare()
  {
#pragma unroll
    for (int c = 0; c < Calls; ++c) {
      const float* const query = pass_.query + c * pass_.width + head_ * HeadWidth;
      const auto* const image =
          reinterpret_cast<const uint4*>(pass_.queries.image(pass_.first_call + c)) +
          head_ * steps * 4;
      for (int x = lane_; x < HeadWidth / 4; x += 32) {
        detail::copy_async(query_ + c * HeadWidth + x * 4, query + x * 4);
        detail::copy_async(image_ + c * steps * 4 + x, image + x);
      }
    }
    detail::end_copy_group();
  }

  __device__ __forceinline__ void run()
  {
#pragma unroll
    for (int c = 0; c < Calls; ++c) {
      gate_[c] = pass_.gate[c];
      logit_gate_[c] = pass_.logit_gate[c];
    }
    const std::int64_t tiles = (pass_.num_positions + 7) / 8;
    for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      inside_ = tile * 8 + row_ < pass_.num_positions;
      position_ = inside_ ? tile * 8 + row_ : pass_.num_positions - 1;
      load_calls();
      const auto mix = load_mix();
      if (tile == blockIdx.x) { copy_query_sums(); }
      find_dot(mix);
      detail::wait_for_copy_groups<0>();
      __syncwarp();
      for (int m = 0; m < pass_.num_rows; ++m) {
        if (m > 0) { load_row(m); }
        gather_row(m);
      }
      store_head_sums();
      head_sums_ += other_sums_;
      other_sums_ = -other_sums_;
    }
    store_query_sums();
  }

private:
  static constexpr int vectors = HeadWidth / 32;
  static constexpr int steps = HeadWidth / 16;

  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index(int call) const
  {
    return (call * pass_.num_positions + position_) * pass_.num_heads + head_;
  }
  [[nodiscard]] __device__ __forceinline__ State* state_of(int m) const
  {
    return static_cast<State*>(pass_.states) + m * pass_.slot_stride + position_ * pass_.width +
           column_;
  }
  [[nodiscard]] __device__ __forceinline__ float4* query_sums_of(int call) const
  {
    return reinterpret_cast<float4*>(pass_.query_sums + call * pass_.width +
                                     blockIdx.x * pass_.chunk_stride + head_ * HeadWidth);
  }

  //! What other passes have left in this block's chunk: this one adds to it on chip.
  __device__ __forceinline__ void copy_query_sums()
  {
    if (pass_.query_sums != nullptr) {
#pragma unroll
      for (int c = 0; c < Calls; ++c) {
        for (int x = lane_; x < HeadWidth / 4; x += 32) {
          detail::copy_async(query_sums_ + c * HeadWidth + x * 4, query_sums_of(c) + x);
        }
      }
    }
    detail::end_copy_group();
  }

  __device__ __forceinline__ void store_query_sums()
  {
    if (pass_.query_sums == nullptr) { return; }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < Calls; ++c) {
      for (int x = lane_; x < HeadWidth / 4; x += 32) {
        query_sums_of(c)[x] = *reinterpret_cast<const float4*>(query_sums_ + c * HeadWidth + x * 4);
      }
    }
  }

  __device__ __forceinline__ void load_row(int m)
  {
    const T* const row =
        pass_.rows + m * pass_.row_stride + position_ * pass_.position_stride + column_;
#pragma unroll
    for (int u = 0; u < vectors; ++u) { row_values_[u] = detail::load_vector(row + u * 32); }
    if (pass_.kept) { state_.load(state_of(m)); }
    inverse_ = pass_.inverse_rms[position_ - m * pass_.num_positions];
    if (m == 0) {
      top_sum_ = kept_sum(0);
      own_sum_ = kept_sum((min)(first_kept() + head_, pass_.num_rows - 1));
    }
  }

  //! The calls of a tile, with D but for the newest, and the top row.
  __device__ __forceinline__ void load_calls()
  {
#pragma unroll
    for (int c = 0; c < Calls; ++c) {
      const T* const gradient = pass_.call_gradients + c * pass_.call_stride +
                                position_ * pass_.call_position_stride + column_;
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
        gradients_[c][u] = detail::load_vector(gradient + u * 32);
      }
      lse_[c] = pass_.lse[head_index(c)];
      if (c > 0 || pass_.mix == nullptr) { dot_[c] = pass_.dot[head_index(c)]; }
    }
    load_row(0);
  }
  [[nodiscard]] __device__ __forceinline__ detail::state_vectors<T, vectors> load_mix() const
  {
    detail::state_vectors<T, vectors> mix{};
    if (pass_.mix != nullptr) {
      mix.load(pass_.mix + position_ * pass_.mix_position_stride + column_);
    }
    return mix;
  }
  //! D of the newest call.
  __device__ __forceinline__ void find_dot(const detail::state_vectors<T, vectors>& mix)
  {
    if (pass_.mix == nullptr) { return; }
    float sum = 0;
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      sum = detail::add_products<T>(mix.values[u], gradients_[0][u], sum);
    }
    dot_[0] = quad_sum(sum);
    if (quad_ == 0 && inside_) { pass_.dot[head_index(0)] = dot_[0]; }
  }
  [[nodiscard]] __device__ __forceinline__ static float quad_sum(float value)
  {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
  }

  //! One row of the tile: factors of every call, dw, and the row's gradient.
  __device__ __forceinline__ void gather_row(int m)
  {
    float chains[2][4] = {};
#pragma unroll
    for (int t = 0; t < steps; ++t) {
      uint4 a = make_uint4(0, 0, 0, 0);
      if (row_ < Calls) { a = image_[row_ * steps * 4 + t * 4 + quad_]; }
      detail::multiply_add_16<T>(chains[t % 2], a.x, a.y, a.z, a.w,
                                 detail::pair_of(row_values_[t / 2], t % 2 * 2),
                                 detail::pair_of(row_values_[t / 2], t % 2 * 2 + 1));
    }
#pragma unroll
    for (int x = 0; x < 4; ++x) { chains[0][x] += chains[1][x]; }
    const float logits[2] = {detail::join_parts<T>(chains[0], 0),
                             detail::join_parts<T>(chains[0], 1)};
    float weights[Calls];  // alpha * a
    float factors[Calls];  // r * dl
    float head_sum = 0;
#pragma unroll
    for (int c = 0; c < Calls; ++c) {
      const float even = __shfl_sync(0xffffffffu, logits[0], c * 4 + row_ / 2);
      const float odd = __shfl_sync(0xffffffffu, logits[1], c * 4 + row_ / 2);
      const float score = (row_ % 2 == 0 ? even : odd) * inverse_;
      float product = 0;
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
        product = detail::add_products<T>(row_values_[u], gradients_[c][u], product);
      }
      product = quad_sum(product);
      const bool single = logit_gate_[c] == 0;
      const float weight =
          single ? 1.0f : detail::exp2_approximate((score - lse_[c]) * detail::log2_of_e);
      const float gradient = single ? 0.0f : logit_gate_[c] * weight * (product - dot_[c]);
      weights[c] = inside_ ? gate_[c] * weight : 0.0f;
      factors[c] = inside_ ? inverse_ * gradient : 0.0f;
      head_sum = fmaf(inside_ ? gradient : 0.0f, score, head_sum);
    }
    if (quad_ == 0) { head_sums_[(m * 8 + row_) * pass_.num_heads + head_] = head_sum; }
    float correction = 0;
    const bool finishes = m == 0 && pass_.finishes;
    if (finishes) {
      __syncthreads();
      correction = -inverse_ * total_head_sum(0, top_sum_) * pass_.inverse_width;
    }
    store_row(m, finishes, weights, factors, correction);
    add_to_queries(factors);
  }

  //! Of the rows whose gradients are kept, the first.
  [[nodiscard]] __device__ __forceinline__ int first_kept() const { return pass_.finishes ? 1 : 0; }
  [[nodiscard]] __device__ __forceinline__ float kept_sum(int m) const
  {
    return pass_.kept ? pass_.head_sums[m * pass_.num_positions + position_] : 0.0f;
  }

  //! The kept head sum of a row of this lane's position plus what the heads have found.
  [[nodiscard]] __device__ __forceinline__ float total_head_sum(int m, float sum) const
  {
    for (int h = 0; h < pass_.num_heads; ++h) {
      sum += head_sums_[(m * 8 + row_) * pass_.num_heads + h];
    }
    return sum;
  }

  __device__ __forceinline__ void store_head_sums()
  {
    if (first_kept() == pass_.num_rows) { return; }
    __syncthreads();
    if (quad_ != 0 || !inside_) { return; }
    for (int m = first_kept() + head_; m < pass_.num_rows; m += pass_.num_heads) {
      pass_.head_sums[m * pass_.num_positions + position_] =
          total_head_sum(m, m == first_kept() + head_ ? own_sum_ : kept_sum(m));
    }
  }

  //! dw: positions are what is summed over, so the row is transposed, eight columns at a time.
  __device__ __forceinline__ void add_to_queries(
      const float (&factors)[static_cast<std::size_t>(Calls)])
  {
    float even = 0;
    float odd = 0;
#pragma unroll
    for (int c = 0; c < Calls; ++c) {
      const float first = __shfl_sync(0xffffffffu, factors[c], quad_ * 8);
      const float second = __shfl_sync(0xffffffffu, factors[c], quad_ * 8 + 4);
      even = row_ == c ? first : even;
      odd = row_ == c ? second : odd;
    }
    const std::uint32_t high = detail::make_pair<bfloat16>(even, odd);
    const std::uint32_t low = detail::make_low_pair<bfloat16>(high, even, odd);
    // All products first, then what they are added to: a place belongs to one lane.
    float sums[static_cast<std::size_t>(vectors)][2][4] = {};
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::uint32_t a0 = detail::transpose(detail::pair_of(row_values_[u], 2 * e));
        const std::uint32_t a1 = detail::transpose(detail::pair_of(row_values_[u], 2 * e + 1));
        const std::uint32_t wide0 = detail::make_wide_pair<T>(a0);
        const std::uint32_t wide1 = detail::make_wide_pair<T>(a1);
        detail::multiply_add_8<bfloat16>(sums[u][e], wide0, wide1, high);
        detail::multiply_add_8<bfloat16>(sums[u][e], wide0, wide1, low);
        if constexpr (detail::has_wide_rest<T>) {
          detail::multiply_add_8<bfloat16>(sums[u][e], detail::make_wide_rest(a0, wide0),
                                           detail::make_wide_rest(a1, wide1), high);
        }
      }
    }
    if (2 * quad_ >= Calls) { return; }
    float* const to = query_sums_ + 2 * quad_ * HeadWidth + row_ / 2 * 8 + row_ % 2;
#pragma unroll
    for (int c = 0; c < (Calls < 2 ? 1 : 2); ++c) {  // of the lane's two
      if (c > 0 && 2 * quad_ + 1 >= Calls) { continue; }
#pragma unroll
      for (int x = 0; x < 4 * vectors; ++x) {
        to[c * HeadWidth + x / 4 * 32 + x % 4 * 2] += sums[x / 4][x % 4 / 2][x % 2 * 2 + c];
      }
    }
  }

  //! A + r B, and for a finished row the norm's part.
  __device__ __forceinline__ void store_row(int m, bool finishes,
                                            const float (&weights)[static_cast<std::size_t>(Calls)],
                                            const float (&factors)[static_cast<std::size_t>(Calls)],
                                            float correction)
  {
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      float sums[8];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float2 pair = pass_.kept ? state_.get(u, e) : make_float2(0, 0);
#pragma unroll
        for (int c = 0; c < Calls; ++c) {
          const std::uint32_t gradient = detail::pair_of(gradients_[c][u], e);
          pair.x = fmaf(weights[c], detail::first_of<T>(gradient), pair.x);
          pair.y = fmaf(weights[c], detail::second_of<T>(gradient), pair.y);
        }
        sums[2 * e] = pair.x;
        sums[2 * e + 1] = pair.y;
      }
#pragma unroll
      for (int c = 0; c < Calls; ++c) {
        const float* const query = query_ + c * HeadWidth + u * 32 + quad_ * 8;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 values = *reinterpret_cast<const float4*>(query + half * 4);
          sums[half * 4] = fmaf(factors[c], values.x, sums[half * 4]);
          sums[half * 4 + 1] = fmaf(factors[c], values.y, sums[half * 4 + 1]);
          sums[half * 4 + 2] = fmaf(factors[c], values.z, sums[half * 4 + 2]);
          sums[half * 4 + 3] = fmaf(factors[c], values.w, sums[half * 4 + 3]);
        }
      }
      if (!inside_) { continue; }
      if (!finishes) {
        detail::store_vector(state_of(m) + u * 32, sums);
        continue;
      }
      if (pass_.row_gradient == nullptr) { continue; }
      // r * (r * s): a large row's r^2 would vanish before it meets the row.
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::uint32_t values = detail::pair_of(row_values_[u], e);
        sums[2 * e] = fmaf(correction, inverse_ * detail::first_of<T>(values), sums[2 * e]);
        sums[2 * e + 1] =
            fmaf(correction, inverse_ * detail::second_of<T>(values), sums[2 * e + 1]);
      }
      detail::store_vector(
          pass_.row_gradient + position_ * pass_.gradient_stride + column_ + u * 32, sums);
    }
  }

  const gather_tensor_params<T>& pass_;
  int head_;
  int lane_;
  int row_;   // i: a position, or a call of an operand
  int quad_;  // q
  float* query_;
  uint4* image_;
  float* query_sums_;
  float* head_sums_;  // [rows][8][H] of this tile
  int other_sums_;    // how far those of the next tile are, which may be made before all are read
  std::int64_t column_;
  bool inside_ = false;
  std::int64_t position_ = 0;
  uint4 gradients_[static_cast<std::size_t>(Calls)][static_cast<std::size_t>(vectors)];
  uint4 row_values_[static_cast<std::size_t>(vectors)];
  detail::state_vectors<State, vectors> state_;
  float lse_[static_cast<std::size_t>(Calls)];
  float dot_[static_cast<std::size_t>(Calls)];
  float gate_[static_cast<std::size_t>(Calls)];
  float logit_gate_[static_cast<std::size_t>(Calls)];
  float inverse_ = 0;
  float top_sum_ = 0;  // kept, of the top row
  float own_sum_ = 0;  // and of the first row whose head sum this warp stores
};

}  // namespace block
MHAR_NAMESPACE_END
