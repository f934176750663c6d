// SPDX-License-Identifier: Apache-2.0
//! The null source's sums of a block whose warps have its parameters in shared memory.
#pragma once

#include <mhar/block/detail/chunk_sums.cuh>
#include <mhar/block/detail/route_storage.cuh>
#include <mhar/block/detail/warp_columns.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Sums of the spans of a warp's columns, as those of a row: they lie where route_heads expects row 0's. Read from memory the null
//! source would be waited for before rows are asked for.
template <int Chunks, int Spans, class Columns, class Parameters>
__device__ __forceinline__ void sum_null_source(
    const Columns& columns, const Parameters& parameters,
    const route_storage<typename Columns::accumulate>& to)
{
  using accumulate = typename Columns::accumulate;
#pragma unroll 1
  for (int span = 0; span < Spans; ++span) {
    thread::vector<accumulate, 2> sums = add_in_lane<Chunks / Spans>([&](int i) {
      const int chunk = span * (Chunks / Spans) + i;
      thread::vector<accumulate, 2> of_chunk{};
      add_products(of_chunk[0], of_chunk[1], parameters.query(chunk),
                   parameters.null_source(chunk));
      return of_chunk;
    });
#pragma unroll 1
    for (int distance = columns.lanes() >> 1; distance > 0; distance >>= 1) {
#pragma unroll
      for (int v = 0; v < 2; ++v) { sums[v] += __shfl_xor_sync(full_warp, sums[v], distance); }
    }
    accumulate* const of_span = to.sums + columns.first_span() + span;
    of_span[0] = sums[0];
    of_span[rows_per_batch * to.stride] = sums[1];
  }
}

}  // namespace block::detail
MHAR_NAMESPACE_END
