// SPDX-License-Identifier: Apache-2.0
//! Matrices of float or of a 16-bit type, known at run time, that are read and written eight columns at a
//! time.
#pragma once

#include <mhar/block/detail/finish_columns.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A matrix of float or of T, which is bfloat16 or float16, whose every eighth column lies at a
//! multiple of 16 bytes. Data is void, const or not.
template <class T, class Data>
struct vector_matrix
{
  Data* data = nullptr;  //!< null when absent
  std::int64_t position_stride = 0;
  bool is_float = false;
};

//! Eight columns as they were loaded: of floats in both halves, of T in the first.
template <class T>
struct loaded_eight
{
  uint4 halves[2];

  __device__ __forceinline__ void load(const void* data, std::int64_t index, bool is_float)
  {
    const char* const from = static_cast<const char*>(data) + index * (is_float ? 4 : 2);
    halves[0] = load_vector(from);
    if (is_float) { halves[1] = load_vector(from + 16); }
  }
  __device__ __forceinline__ void unpack(bool is_float, float (&values)[8]) const
  {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const std::uint32_t pair = pair_of(halves[0], e);
      values[2 * e] =
          is_float ? __uint_as_float(pair_of(halves[e / 2], e % 2 * 2)) : first_of<T>(pair);
      values[2 * e + 1] =
          is_float ? __uint_as_float(pair_of(halves[e / 2], e % 2 * 2 + 1)) : second_of<T>(pair);
    }
  }
};

//! Eight columns; zeros of an absent matrix.
template <class T>
__device__ __forceinline__ void load_eight(const vector_matrix<T, const void>& from,
                                           std::int64_t position, std::int64_t column,
                                           float (&values)[8])
{
  if (from.data == nullptr) {
#pragma unroll
    for (int j = 0; j < 8; ++j) { values[j] = 0; }
    return;
  }
  loaded_eight<T> loaded;
  loaded.load(from.data, position * from.position_stride + column, from.is_float);
  loaded.unpack(from.is_float, values);
}

//! Stores eight columns; an absent matrix takes none.
template <class T>
__device__ __forceinline__ void store_eight(const vector_matrix<T, void>& to, std::int64_t position,
                                            std::int64_t column, const float (&values)[8])
{
  const std::int64_t at = position * to.position_stride + column;
  if (to.data == nullptr) { return; }
  if (to.is_float) { store_vector(static_cast<float*>(to.data) + at, values); }
  else {
    store_vector(static_cast<T*>(to.data) + at, values);
  }
}

}  // namespace block::detail
MHAR_NAMESPACE_END
