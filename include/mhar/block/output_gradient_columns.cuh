// SPDX-License-Identifier: Apache-2.0
//! The gradient of a call's output through its norm, D and dalpha (eq. 9 to 11) of a call without a
//! null source: the columns of a position stay in registers.
#pragma once

#include <mhar/block/detail/vector_matrix.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T>
struct output_gradient_columns_params
{
  std::int64_t num_positions = 0;
  std::int64_t width = 0;
  int num_heads = 1;
  detail::vector_matrix<T, const void> output_gradient;
  detail::vector_matrix<T, const void> combined_gradient;
  detail::vector_matrix<T, const void> combined;  //!< read with an output norm
  detail::vector_matrix<T, const void> mix;
  bool mix_is_combined = false;
  bool has_norm = false;
  float norm_eps = 0;
  detail::vector_matrix<T, const void> norm_weight;  //!< one row for all positions
  T* call_gradient = nullptr;
  std::int64_t call_stride = 0;
  detail::vector_matrix<T, void> partial_gradient;
  float* dot = nullptr;  //!< [P, H]; null where a kernel behind this one finds D
  //! Partial sums of the call in the first chunk; those of the next are chunk_stride, and the gate's
  //! gate_stride, apart. Null when not wanted.
  float* norm_sums = nullptr;
  std::int64_t chunk_stride = 0;
  float* gate_sums = nullptr;
  std::int64_t gate_stride = 0;
};

//! Block x has a range of positions and chunk x of the partial sums. `Warps` warps share a position:
//! lane l of warp w holds columns 8*(32w + l) ... + 7 of every 256*Warps, `Vectors` times.
//!
//! Threads      num_threads
//! Shared       shared_bytes
//! Barriers     with several warps a few per position; two at the end
//! Numerics     a position's bits do not depend on the others; sums over positions in a fixed order
template <class T, int Vectors, int Warps>
class output_gradient_columns
{
public:
  static constexpr int num_threads = 256;

  //! Products of eight columns of every position at hand; at the end, every warp's sums.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int shared_bytes(std::int64_t width)
  {
    return static_cast<int>(Warps == 1 ? num_warps * width : width / 8) * 4;
  }

  __device__ __forceinline__ output_gradient_columns(const output_gradient_columns_params<T>& call,
                                                     float* shared)
      : call_{call},
        shared_{shared},
        lane_{static_cast<int>(threadIdx.x % 32)},
        member_{static_cast<int>(threadIdx.x / 32) % Warps},
        group_{static_cast<int>(threadIdx.x / 32) / Warps}
  {
  }

  __device__ __forceinline__ void run()
  {
    const std::int64_t last = call_.num_positions * (blockIdx.x + 1) / gridDim.x;
    std::int64_t position = call_.num_positions * blockIdx.x / gridDim.x + group_;
    for (; position < last; position += num_groups) { differentiate(position); }
    add_sums();
  }

private:
  static constexpr int num_warps = num_threads / 32;
  static constexpr int num_groups = num_warps / Warps;
  using columns = float[static_cast<std::size_t>(Vectors)][8];
  using loaded_columns = detail::loaded_eight<T>[static_cast<std::size_t>(Vectors)];

  [[nodiscard]] __device__ __forceinline__ std::int64_t column_of(int v) const
  {
    return (v * Warps + member_) * 256 + lane_ * 8;
  }
  [[nodiscard]] __device__ __forceinline__ bool is_inside(int v) const
  {
    return column_of(v) < call_.width;
  }
  [[nodiscard]] __device__ __forceinline__ float* products() const
  {
    return shared_ + group_ * (call_.width / 8);
  }

  //! Of the warps that share a position; what one wrote to shared memory before, all see.
  __device__ __forceinline__ static void wait_for_group()
  {
    if constexpr (Warps == 1) { __syncwarp(); }
    else {
      __syncthreads();
    }
  }
  [[nodiscard]] __device__ __forceinline__ float group_sum(float value)
  {
    value = detail::warp_sum(value);
    if constexpr (Warps > 1) {
      __shared__ float parts[2][static_cast<std::size_t>(num_warps)];
      // Two places in turn: a warp may be one sum ahead of the others, never two.
      place_ ^= 1;
      if (lane_ == 0) { parts[place_][member_] = value; }
      wait_for_group();
      value = 0;
#pragma unroll
      for (int w = 0; w < Warps; ++w) { value += parts[place_][w]; }
    }
    return value;
  }

  //! All vectors are on the way before one of them is waited for. Columns past the width are zero.
  __device__ __forceinline__ void load(const detail::vector_matrix<T, const void>& from,
                                       std::int64_t position, loaded_columns& loaded) const
  {
    const char* const row = static_cast<const char*>(from.data) +
                            position * from.position_stride * (from.is_float ? 4 : 2);
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      loaded[v].halves[0] = loaded[v].halves[1] = make_uint4(0, 0, 0, 0);
      if (is_inside(v)) { loaded[v].load(row, column_of(v), from.is_float); }
    }
  }
  __device__ __forceinline__ static void unpack(const detail::vector_matrix<T, const void>& from,
                                                const loaded_columns& loaded, columns& values)
  {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) { loaded[v].unpack(from.is_float, values[v]); }
  }

  [[nodiscard]] __device__ __forceinline__ float squares_of(const columns& values, float scale)
  {
    float sum = 0;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float value = scale * values[v][j];
        sum = fmaf(value, value, sum);
      }
    }
    return group_sum(sum);
  }

  //! dy becomes the gradient of o by way of y.
  __device__ __forceinline__ void differentiate_norm(const columns& combined, columns& gradient)
  {
    const detail::vector_matrix<T, const void>& weight = call_.norm_weight;
    loaded_columns weights;
    if (weight.data != nullptr) { load(weight, 0, weights); }
    float inverse;
    const float squares = squares_of(combined, 1.0f);
    if (!thread::overflowed(squares)) {
      inverse = thread::inverse_rms(squares, call_.width, call_.norm_eps);
    }
    else {
      inverse = thread::scaled_inverse_rms(squares_of(combined, thread::overflow_scale<float>),
                                           call_.width);
    }
    float sum = 0;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      float factors[8];
      if (weight.data != nullptr) { weights[v].unpack(weight.is_float, factors); }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float normalised = inverse * combined[v][j];
        norm_sums_[v][j] = fmaf(gradient[v][j], normalised, norm_sums_[v][j]);
        if (weight.data != nullptr) { gradient[v][j] *= factors[j]; }
        sum = fmaf(gradient[v][j], normalised, sum);
      }
    }
    const float mean = group_sum(sum) / static_cast<float>(call_.width);
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        gradient[v][j] = inverse * (gradient[v][j] - mean * (inverse * combined[v][j]));
      }
    }
  }

  __device__ __forceinline__ void differentiate(std::int64_t position)
  {
    columns gradient;
    columns combined;
    loaded_columns loaded;
    load(call_.output_gradient, position, loaded);
    // o, or the mix at once.
    const bool needs_mix = call_.dot != nullptr && !(call_.has_norm && call_.mix_is_combined);
    const detail::vector_matrix<T, const void>& other = call_.has_norm ? call_.combined : call_.mix;
    loaded_columns others;
    if (call_.has_norm || needs_mix) { load(other, position, others); }
    unpack(call_.output_gradient, loaded, gradient);
    unpack(other, others, combined);
    if (call_.has_norm) {
      if (needs_mix) { load(call_.mix, position, others); }
      differentiate_norm(combined, gradient);
      if (needs_mix) { unpack(call_.mix, others, combined); }
    }
    if (call_.combined_gradient.data != nullptr) {
      columns added;
      load(call_.combined_gradient, position, loaded);
      unpack(call_.combined_gradient, loaded, added);
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
#pragma unroll
        for (int j = 0; j < 8; ++j) { gradient[v][j] += added[v][j]; }
      }
    }
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      if (is_inside(v)) { store(position, v, gradient[v], combined[v]); }
    }
    if (call_.dot != nullptr) { find_dots(position); }
  }

  //! do as the passes that follow read it, and its product with the mix.
  __device__ __forceinline__ void store(std::int64_t position, int v, const float (&gradient)[8],
                                        const float (&mix)[8])
  {
    const std::int64_t column = column_of(v);
    detail::store_eight(call_.partial_gradient, position, column, gradient);
    const uint4 rounded = make_uint4(detail::make_pair<T>(gradient[0], gradient[1]),
                                     detail::make_pair<T>(gradient[2], gradient[3]),
                                     detail::make_pair<T>(gradient[4], gradient[5]),
                                     detail::make_pair<T>(gradient[6], gradient[7]));
    *reinterpret_cast<uint4*>(call_.call_gradient + position * call_.call_stride + column) =
        rounded;
    if (call_.dot == nullptr) { return; }
    float product = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      product = fmaf(detail::first_of<T>(detail::pair_of(rounded, e)), mix[2 * e], product);
      product = fmaf(detail::second_of<T>(detail::pair_of(rounded, e)), mix[2 * e + 1], product);
    }
    products()[column / 8] = product;
  }

  //! Lane h of a position's first warp has head h.
  __device__ __forceinline__ void find_dots(std::int64_t position)
  {
    wait_for_group();
    if (member_ == 0 && lane_ < call_.num_heads) {
      const auto count = static_cast<int>(call_.width / 8 / call_.num_heads);
      const float* const own = products() + lane_ * count;
      float sum = 0;
#pragma unroll 4
      for (int x = 0; x < count; ++x) { sum += own[x]; }
      call_.dot[position * call_.num_heads + lane_] = sum;
      gate_sum_ += sum;
    }
    wait_for_group();
  }

  //! The warps' sums over their positions, in order.
  __device__ __forceinline__ void add_sums()
  {
    __shared__ float gates[static_cast<std::size_t>(num_warps)];
    const float gate_sum = detail::warp_sum(gate_sum_);
    if (lane_ == 0) { gates[threadIdx.x / 32] = gate_sum; }
    __syncthreads();
    if (call_.gate_sums != nullptr && threadIdx.x == 0) {
      float sum = call_.gate_sums[blockIdx.x * call_.gate_stride];
      for (int g = 0; g < num_groups; ++g) { sum += gates[g * Warps]; }
      call_.gate_sums[blockIdx.x * call_.gate_stride] = sum;
    }
    if (call_.norm_sums == nullptr) { return; }
    float* const to = call_.norm_sums + blockIdx.x * call_.chunk_stride;
    if constexpr (Warps > 1) {
      static_assert(num_groups == 1, "every column has one owner");
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        if (!is_inside(v)) { continue; }
#pragma unroll
        for (int j = 0; j < 8; ++j) { to[column_of(v) + j] += norm_sums_[v][j]; }
      }
    }
    else {
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        if (!is_inside(v)) { continue; }
        detail::store_vector(shared_ + group_ * call_.width + column_of(v), norm_sums_[v]);
      }
      __syncthreads();
      for (std::int64_t k = threadIdx.x; k < call_.width; k += num_threads) {
        float sum = to[k];
#pragma unroll
        for (int w = 0; w < num_warps; ++w) { sum += shared_[w * call_.width + k]; }
        to[k] = sum;
      }
    }
  }

  const output_gradient_columns_params<T>& call_;
  float* shared_;
  int lane_;
  int member_;  // of the warps that share a position
  int group_;   // of such warps
  int place_ = 0;
  float gate_sum_ = 0;
  columns norm_sums_ = {};
};

}  // namespace block
MHAR_NAMESPACE_END
