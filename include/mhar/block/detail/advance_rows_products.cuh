// SPDX-License-Identifier: Apache-2.0
//! The logits of advance_rows.
#pragma once

#include <mhar/block/advance_rows.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! <w, s> of eight calls, eight positions and rows `Begin` to `End`: logits[n][e] is call
//! first + row_, position 2*quad_ + e. With one row or two, odd and even steps are sums of their own,
//! so that products wait less for another.
template <class T, int HeadWidth, int Rows, class State, int Blocks, bool Ends, bool HasNull>
template <int Begin, int End>
__device__ __forceinline__ void
advance_rows<T, HeadWidth, Rows, State, Blocks, Ends, HasNull>::multiply(
    int first, float (&logits)[static_cast<std::size_t>(Rows)][2]) const
{
  constexpr int chains = End - Begin <= 2 ? 2 : 1;
  asm volatile("" ::: "memory");  // queries are read every time: they do not fit in registers
  // Calls past the last read another's queries; nobody asks for their logits.
  const int call = (max)((min)(row_, pass_.num_calls - first - 1), 0);
  const std::uint32_t own = queries_ + call * query_bytes + quad_ * 16;
  const std::uint32_t steps[2] = {own + call % 2 * 64, own + (1 - call % 2) * 64};
  float sums[static_cast<std::size_t>(chains)][static_cast<std::size_t>(End - Begin)][4] = {};
#pragma unroll
  for (int u = 0; u < vectors; ++u) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const uint4 query = detail::load_shared(steps[v] + u * 128);
#pragma unroll
      for (int n = Begin; n < End; ++n) {
        detail::multiply_add_16<T>(sums[v % chains][n - Begin], query.x, query.y, query.z, query.w,
                                   detail::pair_of(rows_[n][u], v * 2),
                                   detail::pair_of(rows_[n][u], v * 2 + 1));
      }
    }
  }
#pragma unroll
  for (int n = Begin; n < End; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      logits[n][e] = detail::join_parts<T>(sums[0][n - Begin], e);
      if constexpr (chains == 2) { logits[n][e] += detail::join_parts<T>(sums[1][n - Begin], e); }
    }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
