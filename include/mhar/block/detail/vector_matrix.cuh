// SPDX-License-Identifier: Apache-2.0
//! Matrices of float or bfloat16, known at run time, that are read and written eight columns at a
//! time.
#pragma once

#include <mhar/block/detail/finish_columns.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A matrix of float or bfloat16 whose every eighth column lies at a multiple of 16 bytes. Data is
//! void, const or not.
template <class Data>
struct vector_matrix
{
  Data* data = nullptr;  //!< null when absent
  std::int64_t position_stride = 0;
  bool is_float = false;
};

//! Eight columns as they were loaded: of floats in both halves, of bfloat16 in the first.
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
          is_float ? __uint_as_float(pair_of(halves[e / 2], e % 2 * 2)) : first_of(pair);
      values[2 * e + 1] =
          is_float ? __uint_as_float(pair_of(halves[e / 2], e % 2 * 2 + 1)) : second_of(pair);
    }
  }
};

//! Eight columns; zeros of an absent matrix.
__device__ __forceinline__ void load_eight(const vector_matrix<const void>& from,
                                           std::int64_t position, std::int64_t column,
                                           float (&values)[8])
{
  if (from.data == nullptr) {
#pragma unroll
    for (int j = 0; j < 8; ++j) { values[j] = 0; }
    return;
  }
  loaded_eight loaded;
  loaded.load(from.data, position * from.position_stride + column, from.is_float);
  loaded.unpack(from.is_float, values);
}

//! Stores eight columns; an absent matrix takes none.
__device__ __forceinline__ void store_eight(const vector_matrix<void>& to, std::int64_t position,
                                            std::int64_t column, const float (&values)[8])
{
  const std::int64_t at = position * to.position_stride + column;
  if (to.data == nullptr) { return; }
  if (to.is_float) { store_vector(static_cast<float*>(to.data) + at, values); }
  else {
    store_vector(static_cast<bfloat16*>(to.data) + at, values);
  }
}

}  // namespace block::detail
MHAR_NAMESPACE_END
