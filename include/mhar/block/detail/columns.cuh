// SPDX-License-Identifier: Apache-2.0
//! Runs of consecutive columns of arrays whose element type is known at run time: parameters, activations, outputs.
#pragma once

#include <mhar/thread/vector.hpp>
#include <mhar/types/view.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Elements of type T that one access of at most 16 bytes takes from a run of Count.
template <class T, int Count>
inline constexpr int access_width = Count < thread::chunk_width<T> ? Count : thread::chunk_width<T>;

template <class T, int Count>
[[nodiscard]] __device__ __forceinline__ bool is_accessible(const void* address)
{
  return thread::is_aligned(address, access_width<T, Count> * static_cast<int>(sizeof(T)));
}

template <class Accumulate, int Count, class T>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, Count> load_accesses(
    const T* from)
{
  constexpr int step = access_width<T, Count>;
  thread::vector<Accumulate, Count> result;
#pragma unroll
  for (int i = 0; i < Count; i += step) {
    const thread::vector<T, step> part = thread::load_vector<T, step>(from + i);
#pragma unroll
    for (int k = 0; k < step; ++k) { result[i + k] = widen<Accumulate>(part[k]); }
  }
  return result;
}

template <class T, class Accumulate, int Count>
__device__ __forceinline__ void store_accesses(T* to,
                                               const thread::vector<Accumulate, Count>& value)
{
  constexpr int step = access_width<T, Count>;
#pragma unroll
  for (int i = 0; i < Count; i += step) {
    thread::vector<T, step> part;
#pragma unroll
    for (int k = 0; k < step; ++k) { part[k] = round_to<T>(value[i + k]); }
    thread::store_vector(to + i, part);
  }
}

//! The rare cases, out of line: they would make up most of every kernel's code.
template <class Accumulate>
__device__ __noinline__ void load_elementwise(const void* data, element type, std::int64_t index,
                                              int count, Accumulate* result)
{
#pragma unroll 1
  for (int i = 0; i < count; ++i) { result[i] = load<Accumulate>(data, type, index + i); }
}
template <class Accumulate>
__device__ __noinline__ void store_elementwise(void* data, element type, std::int64_t index,
                                               int count, const Accumulate* value)
{
#pragma unroll 1
  for (int i = 0; i < count; ++i) { mhar::store(data, type, index + i, value[i]); }
}

//! Elements [index, index + count) of an array, count <= Count; the others are set to `absent`, as all are without an array.
//! Aligned runs are read 16 bytes at a time, but for runs of double, which are read one by one.
template <class Accumulate, int Count>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, Count> load_columns(
    const void* data, element type, std::int64_t index, int count, Accumulate absent = 0)
{
  if (data != nullptr && count == Count) {
    if (type == element::float32) {
      const float* const from = static_cast<const float*>(data) + index;
      if (is_accessible<float, Count>(from)) { return load_accesses<Accumulate, Count>(from); }
    }
    else if (type == element::bfloat16) {
      const bfloat16* const from = static_cast<const bfloat16*>(data) + index;
      if (is_accessible<bfloat16, Count>(from)) { return load_accesses<Accumulate, Count>(from); }
    }
    else if (type == element::float16) {
      const float16* const from = static_cast<const float16*>(data) + index;
      if (is_accessible<float16, Count>(from)) { return load_accesses<Accumulate, Count>(from); }
    }
  }
  thread::vector<Accumulate, Count> result;
#pragma unroll
  for (int i = 0; i < Count; ++i) { result[i] = absent; }
  if (data != nullptr) { load_elementwise(data, type, index, count, result.lanes); }
  return result;
}

//! Rounds the first `count` values into elements [index, index + count) of an array.
template <class Accumulate, int Count>
__device__ __forceinline__ void store_columns(void* data, element type, std::int64_t index,
                                              int count,
                                              const thread::vector<Accumulate, Count>& value)
{
  if (count == Count) {
    if (type == element::float32) {
      float* const to = static_cast<float*>(data) + index;
      if (is_accessible<float, Count>(to)) { return store_accesses(to, value); }
    }
    else if (type == element::bfloat16) {
      bfloat16* const to = static_cast<bfloat16*>(data) + index;
      if (is_accessible<bfloat16, Count>(to)) { return store_accesses(to, value); }
    }
    else if (type == element::float16) {
      float16* const to = static_cast<float16*>(data) + index;
      if (is_accessible<float16, Count>(to)) { return store_accesses(to, value); }
    }
  }
  const thread::vector<Accumulate, Count> in_memory = value;
  store_elementwise(data, type, index, count, in_memory.lanes);
}

//! Adds the first `count` values to elements [index, index + count): update::accumulate.
template <class Accumulate, int Count>
__device__ __forceinline__ void add_columns(void* data, element type, std::int64_t index, int count,
                                            const thread::vector<Accumulate, Count>& value)
{
  thread::vector<Accumulate, Count> sum = load_columns<Accumulate, Count>(data, type, index, count);
#pragma unroll
  for (int i = 0; i < Count; ++i) { sum[i] += value[i]; }
  store_columns(data, type, index, count, sum);
}

//! Copies `count` elements between arrays of one type: their bits, not their values.
__device__ __forceinline__ void copy_columns(void* to, std::int64_t to_index, const void* from,
                                             std::int64_t from_index, element type, int count)
{
  const int size = size_of(type);
  char* const target = static_cast<char*>(to) + to_index * size;
  const char* const source = static_cast<const char*>(from) + from_index * size;
#pragma unroll 1
  for (int i = 0; i < count * size; i += 2) {
    *reinterpret_cast<std::uint16_t*>(target + i) =
        *reinterpret_cast<const std::uint16_t*>(source + i);
  }
}

}  // namespace block::detail
MHAR_NAMESPACE_END
