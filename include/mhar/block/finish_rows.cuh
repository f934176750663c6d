// SPDX-License-Identifier: Apache-2.0
//! What is left of a pass that reads nothing: a kept call becomes its outputs, a kept row its
//! gradient; and the inverse rms of new rows.
#pragma once

#include <mhar/block/detail/finish_columns.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! A call whose state is its mix already, and that is stored as any type, anywhere.
template <class T>
struct finish_call_params
{
  std::int64_t width = 0;
  int num_heads = 1;
  const void* state = nullptr;       //!< [P, d]
  const float* state_lse = nullptr;  //!< [P, H]
  detail::mix_stage<T> stage;
  float* lse = nullptr;  //!< [P, H]; may be null
};

//! Position blockIdx.x. No barrier.
template <class T, class State>
__device__ __forceinline__ void finish_call(const finish_call_params<T>& call)
{
  const std::int64_t position = blockIdx.x;
  const float gate = call.stage.load_gate();
  if (call.lse != nullptr) {
    for (int h = threadIdx.x; h < call.num_heads; h += blockDim.x) {
      const std::int64_t at = position * call.num_heads + h;
      call.lse[at] = call.state_lse[at];
    }
  }
  const State* const state = static_cast<const State*>(call.state) + position * call.width;
  for (std::int64_t k = threadIdx.x * 8; k < call.width; k += blockDim.x * 8) {
    float mix[8];
    float partial[8];
    detail::load_state(state + k, mix);
    detail::load_columns(call.stage.partial, position, k, partial);
    detail::finish_columns(call.stage, gate, position, k, mix, partial);
  }
}

//! A row whose calls have all been gathered.
template <class T>
struct finish_row_params
{
  std::int64_t width = 0;
  float inverse_width = 0;
  const T* row = nullptr;
  std::int64_t position_stride = 0;
  const void* state = nullptr;         //!< [P, d]
  const float* head_sum = nullptr;     //!< [P]
  const float* inverse_rms = nullptr;  //!< [P]
  detail::column_matrix<T, matrix> gradient;
};

//! ds = A + r B - (r^2/d) c s of position blockIdx.x. No barrier.
template <class T, class State>
__device__ __forceinline__ void finish_row(const finish_row_params<T>& row)
{
  const std::int64_t position = blockIdx.x;
  const float inverse = row.inverse_rms[position];
  const float factor = -inverse * row.head_sum[position] * row.inverse_width;
  const State* const state = static_cast<const State*>(row.state) + position * row.width;
  const T* const values = row.row + position * row.position_stride;
  for (std::int64_t k = threadIdx.x * 8; k < row.width; k += blockDim.x * 8) {
    float sums[8];
    float source[8];
    detail::load_state(state + k, sums);
    detail::load_state(values + k, source);
    // r * (r * s): a large row's r^2 would vanish before it meets the row.
#pragma unroll
    for (int j = 0; j < 8; ++j) { sums[j] = fmaf(factor, inverse * source[j], sums[j]); }
    detail::update_columns(row.gradient, position, k, sums);
  }
}

//! New rows of a pass.
template <class T>
struct row_statistics_params
{
  std::int64_t num_positions = 0;
  std::int64_t width = 0;
  float inverse_width = 0;  //!< 1 / the width of the norm
  float eps = 0;
  const T* rows = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t position_stride = 0;
  float* inverse_rms = nullptr;  //!< [rows, P]
};

//! Row blockIdx.y, a warp per position.
template <class T>
__device__ __forceinline__ void find_row_statistics(const row_statistics_params<T>& pass)
{
  const std::int64_t position = blockIdx.x * std::int64_t{blockDim.x / 32} + threadIdx.x / 32;
  if (position >= pass.num_positions) { return; }
  const T* const row = pass.rows + blockIdx.y * pass.row_stride + position * pass.position_stride;
  const auto sum_under = [&](float scale) {
    float sum = 0;
#pragma unroll 4
    for (std::int64_t k = threadIdx.x % 32 * 8; k < pass.width; k += 256) {
      sum = detail::add_squares<T>(detail::load_vector(row + k), scale, sum);
    }
    return detail::warp_sum(sum);
  };
  const float sum = sum_under(1.0f);
  const float scaled = thread::overflowed(sum) ? sum_under(thread::overflow_scale<float>) : 0.0f;
  if (threadIdx.x % 32 == 0) {
    pass.inverse_rms[blockIdx.y * pass.num_positions + position] =
        detail::row_inverse_rms(sum, scaled, pass.inverse_width, pass.eps);
  }
}

}  // namespace block
MHAR_NAMESPACE_END
