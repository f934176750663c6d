// SPDX-License-Identifier: Apache-2.0
//! Runs of consecutive columns of arrays whose element type is known at run time: parameters, activations, outputs.
#pragma once

#include <mhar/thread/vector.hpp>
#include <mhar/types/view.hpp>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! The type of an array's elements as a template argument of `visitor`, which takes a null pointer of that type.
template <class Visitor>
__device__ __forceinline__ void visit_element(element type, Visitor visitor)
{
  switch (type) {
    case element::bfloat16: visitor(static_cast<bfloat16*>(nullptr)); break;
    case element::float16: visitor(static_cast<float16*>(nullptr)); break;
    case element::float32: visitor(static_cast<float*>(nullptr)); break;
    default: visitor(static_cast<double*>(nullptr)); break;
  }
}

//! Elements of type T that one access of at most 16 bytes takes from a run of Count.
template <class T, int Count>
inline constexpr int access_width = Count < thread::chunk_width<T> ? Count : thread::chunk_width<T>;

//! Elements [index, index + count) of an array, count <= Count; the others are set to `absent`, as all are without an array.
//! Addresses that allow it are read 16 bytes at a time.
template <class Accumulate, int Count>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, Count> load_columns(
    const void* data, element type, std::int64_t index, int count, Accumulate absent = 0)
{
  thread::vector<Accumulate, Count> result;
#pragma unroll
  for (int i = 0; i < Count; ++i) { result[i] = absent; }
  if (data == nullptr) { return result; }
  visit_element(type, [&](auto* tag) {
    using source = cuda::std::remove_pointer_t<decltype(tag)>;
    constexpr int step = access_width<source, Count>;
    const source* const from = static_cast<const source*>(data) + index;
    if (count == Count && thread::is_aligned(from, step * static_cast<int>(sizeof(source)))) {
#pragma unroll
      for (int i = 0; i < Count; i += step) {
        const thread::vector<source, step> part = thread::load_vector<source, step>(from + i);
#pragma unroll
        for (int k = 0; k < step; ++k) { result[i + k] = widen<Accumulate>(part[k]); }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      if (i < count) { result[i] = widen<Accumulate>(from[i]); }
    }
  });
  return result;
}

//! Rounds the first `count` values into elements [index, index + count) of an array.
template <class Accumulate, int Count>
__device__ __forceinline__ void store_columns(void* data, element type, std::int64_t index,
                                              int count,
                                              const thread::vector<Accumulate, Count>& value)
{
  visit_element(type, [&](auto* tag) {
    using target = cuda::std::remove_pointer_t<decltype(tag)>;
    constexpr int step = access_width<target, Count>;
    target* const to = static_cast<target*>(data) + index;
    if (count == Count && thread::is_aligned(to, step * static_cast<int>(sizeof(target)))) {
#pragma unroll
      for (int i = 0; i < Count; i += step) {
        thread::vector<target, step> part;
#pragma unroll
        for (int k = 0; k < step; ++k) { part[k] = round_to<target>(value[i + k]); }
        thread::store_vector(to + i, part);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      if (i < count) { to[i] = round_to<target>(value[i]); }
    }
  });
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

}  // namespace block::detail
MHAR_NAMESPACE_END
