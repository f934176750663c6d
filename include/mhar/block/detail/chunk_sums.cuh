// SPDX-License-Identifier: Apache-2.0
//! What a lane adds up over its chunks for the two sums of a row that its softmax step needs.
#pragma once

#include <mhar/thread/multiply_add.hpp>
#include <mhar/thread/vector.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! <w, s> and s^2 over a chunk, its columns added in order.
template <class Accumulate, int Width>
__device__ __forceinline__ void add_products(Accumulate& product, Accumulate& square,
                                             const thread::vector<Accumulate, Width>& w,
                                             const thread::vector<Accumulate, Width>& s)
{
#pragma unroll
  for (int c = 0; c < Width; ++c) {
    product = thread::multiply_add(w[c], s[c], product);
    square = thread::multiply_add(s[c], s[c], square);
  }
}

//! The sums of a lane's chunk i. Joined: a span's chunks are added in order; else each chunk is of another span.
template <bool Joined, class Accumulate, int Count>
__device__ __forceinline__ void add_chunk(thread::vector<Accumulate, Count>& of_lane,
                                          const thread::vector<Accumulate, Count>& of_chunk, int i)
{
#pragma unroll
  for (int v = 0; v < Count; ++v) {
    of_lane[v] = Joined && i > 0 ? of_lane[v] + of_chunk[v] : of_chunk[v];
  }
}

}  // namespace block::detail
MHAR_NAMESPACE_END
