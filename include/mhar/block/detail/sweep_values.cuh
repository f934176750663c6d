// SPDX-License-Identifier: Apache-2.0
//! What the plain kernels of the sweeps share: keys, weights, the inverse rms of a row and the
//! stage after a mix.
#pragma once

#include <mhar/block/detail/block_sum.cuh>
#include <mhar/thread/inverse_rms.hpp>
#include <mhar/types/call.hpp>

#include <cuda/std/cmath>
#include <cuda/std/limits>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate minus_infinity()
{
  return -cuda::std::numeric_limits<Accumulate>::infinity();
}

//! One element of a key: the row's, or the row's scaled by its inverse rms and rounded to storage.
template <class T>
[[nodiscard]] __device__ __forceinline__ accumulate_t<T> key_of(T value, accumulate_t<T> inverse,
                                                                key_rounding rounding)
{
  using accumulate = accumulate_t<T>;
  if (rounding == key_rounding::none) { return widen<accumulate>(value); }
  return widen<accumulate>(round_to<T>(widen<accumulate>(value) * inverse));
}

//! Weight of a source from its logit. A call of one source has the weight 1 whatever its logit;
//! without any finite logit, 0.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate weight_of(Accumulate logit, Accumulate lse,
                                                              Accumulate logit_gate)
{
  if (lse == minus_infinity<Accumulate>()) { return 0; }
  return logit_gate == 0 ? Accumulate{1} : cuda::std::exp(logit - lse);
}

//! <a, b> over `count` columns by one warp; the sum is in every lane.
template <class Accumulate, class First, class Second>
[[nodiscard]] __device__ __forceinline__ Accumulate warp_dot(const First& first,
                                                             const Second& second,
                                                             std::int64_t count)
{
  Accumulate sum = 0;
  for (std::int64_t k = threadIdx.x % 32; k < count; k += 32) { sum += first(k) * second(k); }
  return warp_sum(sum);
}

//! The inverse rms of a row by a whole block: four barriers where its squares overflow, else two.
template <class Accumulate, int Threads, class Row>
[[nodiscard]] __device__ Accumulate block_inverse_rms(const block_sum<Accumulate, Threads>& sum_of,
                                                      const Row& row, std::int64_t width,
                                                      std::int64_t full_width, Accumulate eps)
{
  Accumulate sum = 0;
  for (std::int64_t k = threadIdx.x; k < width; k += Threads) { sum += row(k) * row(k); }
  sum = sum_of(sum);
  if (!thread::overflowed(sum)) { return thread::inverse_rms(sum, full_width, eps); }
  Accumulate scaled = 0;
  for (std::int64_t k = threadIdx.x; k < width; k += Threads) {
    const Accumulate value = thread::overflow_scale<Accumulate> * row(k);
    scaled += value * value;
  }
  return thread::scaled_inverse_rms(sum_of(scaled), full_width);
}

//! Stores or adds one element. A double destination is added to in double whatever the accumulation
//! type.
template <class Accumulate>
__device__ __forceinline__ void update_element(void* data, element type, update mode,
                                               std::int64_t index, Accumulate value)
{
  if (mode == update::store) { mhar::store(data, type, index, value); }
  else if (type == element::float64) {
    static_cast<double*>(data)[index] += static_cast<double>(value);
  }
  else {
    mhar::store(data, type, index, mhar::load<Accumulate>(data, type, index) + value);
  }
}
template <class Accumulate>
__device__ __forceinline__ void update_element(const matrix& to, std::int64_t position,
                                               std::int64_t column, Accumulate value)
{
  update_element(to.data, to.type, to.mode, position * to.position_stride + column, value);
}

//! One element of a matrix.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate element_at(const const_matrix& from,
                                                               std::int64_t position,
                                                               std::int64_t column)
{
  return mhar::load<Accumulate>(from.data, from.type, position * from.position_stride + column);
}

//! o = partial + alpha * mix; alpha == 0 selects the partial itself, whatever the mix holds.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate combined_value(const output_stage& stage,
                                                                   Accumulate gate, Accumulate mix,
                                                                   std::int64_t position,
                                                                   std::int64_t column)
{
  const Accumulate partial =
      stage.partial ? element_at<Accumulate>(stage.partial, position, column) : Accumulate{0};
  if (gate == 0) { return partial; }
  return stage.partial ? partial + gate * mix : gate * mix;
}

}  // namespace block::detail
MHAR_NAMESPACE_END
