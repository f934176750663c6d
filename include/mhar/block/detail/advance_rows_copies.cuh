// SPDX-License-Identifier: Apache-2.0
//! The parameters that advance_rows copies to shared memory.
#pragma once

#include <mhar/block/advance_rows.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Of eight calls from the pass's call `first` on, and their null sources. Vector v of call j lies at
//! vector v ^ 4*(j % 2): the same vectors of two calls are in different banks.
template <class T, int HeadWidth, int Rows, class State, int Blocks, bool Ends, bool HasNull>
__device__ __forceinline__ void
advance_rows<T, HeadWidth, Rows, State, Blocks, Ends, HasNull>::copy_queries(int first) const
{
  constexpr int vectors_of_call = query_bytes / 16;
  const int calls = (min)(pass_.num_calls - first, 8);
  for (int j = 0; j < calls; ++j) {
    const auto* const image =
        reinterpret_cast<const uint4*>(pass_.queries.image(pass_.first_call + first + j)) +
        head_ * vectors_of_call + lane_;
    const std::uint32_t to = queries_ + j * query_bytes + (lane_ ^ j % 2 * 4) * 16;
#pragma unroll
    for (int v = 0; v < vectors_of_call; v += 32) {
      if (v + lane_ < vectors_of_call) { detail::copy_async(to + v * 16, image + v); }
    }
  }
  if constexpr (HasNull) { copy_nulls(first, calls); }
  detail::end_copy_group();
}

template <class T, int HeadWidth, int Rows, class State, int Blocks, bool Ends, bool HasNull>
__device__ __forceinline__ void
advance_rows<T, HeadWidth, Rows, State, Blocks, Ends, HasNull>::copy_nulls(int first,
                                                                           int calls) const
{
  constexpr int vectors_of_call = query_bytes / 16;
  const float* const null = pass_.null_source + first * pass_.width + head_ * HeadWidth;
  for (int j = 0; j < calls; ++j) {
    for (int v = lane_; v < vectors_of_call; v += 32) {
      detail::copy_async(nulls_of(j) + v * 16, null + j * pass_.width + v * 4);
    }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
