// SPDX-License-Identifier: Apache-2.0
//! What becomes of a mix and of a row's gradient, eight columns at a time: gate, partial, and
//! stores of any type, by 16-byte vectors where the matrices allow it.
#pragma once

#include <mhar/block/detail/element_pairs.cuh>
#include <mhar/block/detail/sweep_values.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A matrix and whether eight columns of it are one vector of T, which is bfloat16 or float16.
template <class T, class Matrix>
struct column_matrix
{
  Matrix matrix;
  bool is_vector = false;
};

//! Eight columns; zeros of an absent matrix.
template <class T>
__device__ __forceinline__ void load_columns(const column_matrix<T, const_matrix>& from,
                                             std::int64_t position, std::int64_t column,
                                             float (&values)[8])
{
  if (from.is_vector) {
    const uint4 vector = load_vector(static_cast<const T*>(from.matrix.data) +
                                     position * from.matrix.position_stride + column);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      values[2 * e] = first_of<T>(pair_of(vector, e));
      values[2 * e + 1] = second_of<T>(pair_of(vector, e));
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    values[j] = from.matrix ? element_at<float>(from.matrix, position, column + j) : 0.0f;
  }
}

//! Stores or adds eight columns; an absent matrix takes none.
template <class T>
__device__ __forceinline__ void update_columns(const column_matrix<T, matrix>& to,
                                               std::int64_t position, std::int64_t column,
                                               const float (&values)[8])
{
  if (!to.matrix) { return; }
  if (to.is_vector && to.matrix.mode == update::store) {
    store_vector(static_cast<T*>(to.matrix.data) + position * to.matrix.position_stride + column,
                 values);
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) { update_element(to.matrix, position, column + j, values[j]); }
}

//! A stage without an output norm, and where its results go.
template <class T>
struct mix_stage
{
  column_matrix<T, const_matrix> partial;
  const_array gate;
  column_matrix<T, matrix> y;
  column_matrix<T, matrix> combined;
  column_matrix<T, matrix> mix;

  [[nodiscard]] __device__ __forceinline__ float load_gate() const
  {
    return gate ? mhar::load<float>(gate.data, gate.type, 0) : 1.0f;
  }
};

//! o = partial + alpha * mix and its stores; alpha == 0 selects the partial, whatever the mix is.
template <class T>
__device__ __forceinline__ void finish_columns(const mix_stage<T>& stage, float gate,
                                               std::int64_t position, std::int64_t column,
                                               const float (&mix)[8], const float (&partial)[8])
{
  float values[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    values[j] = gate == 0              ? partial[j]
                : stage.partial.matrix ? fmaf(gate, mix[j], partial[j])
                                       : gate * mix[j];
  }
  update_columns(stage.mix, position, column, mix);
  update_columns(stage.combined, position, column, values);
  update_columns(stage.y, position, column, values);
}

//! Eight columns of a kept state.
template <class T>
__device__ __forceinline__ void load_state(const T* from, float (&values)[8])
{
  const uint4 vector = load_vector(from);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    values[2 * e] = first_of<T>(pair_of(vector, e));
    values[2 * e + 1] = second_of<T>(pair_of(vector, e));
  }
}
__device__ __forceinline__ void load_state(const float* from, float (&values)[8])
{
  const float4 first = *reinterpret_cast<const float4*>(from);
  const float4 second = *reinterpret_cast<const float4*>(from + 4);
  values[0] = first.x;
  values[1] = first.y;
  values[2] = first.z;
  values[3] = first.w;
  values[4] = second.x;
  values[5] = second.y;
  values[6] = second.z;
  values[7] = second.w;
}

//! values += a kept state: of 16 bits it has come in already, of float it is read here.
template <class T>
__device__ __forceinline__ void add_kept(const uint4& kept, const T*, float (&values)[8])
{
  float added[8];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    added[2 * e] = first_of<T>(pair_of(kept, e));
    added[2 * e + 1] = second_of<T>(pair_of(kept, e));
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) { values[j] += added[j]; }
}
__device__ __forceinline__ void add_kept(const uint4&, const float* from, float (&values)[8])
{
  float added[8];
  load_state(from, added);
#pragma unroll
  for (int j = 0; j < 8; ++j) { values[j] += added[j]; }
}

}  // namespace block::detail
MHAR_NAMESPACE_END
