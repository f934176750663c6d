// SPDX-License-Identifier: Apache-2.0
//! Sums over the width for what is rare: the null source, and keys that are rounded once their r is known (eq. 8).
#pragma once

#include <mhar/block/detail/route_rows.cuh>
#include <mhar/block/detail/route_storage.cuh>
#include <mhar/thread/inverse_rms.hpp>
#include <mhar/thread/multiply_add.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

template <class Accumulate>
struct key_sums
{
  Accumulate product = 0;  //!< <w, key>
  Accumulate square = 0;   //!< <s, s>
};

template <class T, class Rows>
[[nodiscard]] __device__ __forceinline__ key_sums<accumulate_t<T>> sum_key(
    const route_parameters<T>& p, const Rows& rows, int k, int chunk, accumulate_t<T> r,
    key_rounding rounding)
{
  using accumulate = accumulate_t<T>;
  constexpr int width = thread::chunk_width<T>;
  const int column = p.tree.first_column(chunk, width);
  const int count = p.tree.columns(chunk, width);
  const auto w = fold_chunk(p, column, count);
  const auto s = thread::widen_all<accumulate>(rows.load(k, chunk, column, count));
  const bool twice = rounding == key_rounding::storage_twice;
  const auto g = load_parameter<accumulate, width>(twice ? p.norm_weight : const_array{}, column,
                                                   count, accumulate{1});
  key_sums<accumulate> sums;
#pragma unroll
  for (int c = 0; c < width; ++c) {
    accumulate key =
        rounding == key_rounding::none ? s[c] : widen<accumulate>(round_to<T>(s[c] * r));
    if (twice) { key = widen<accumulate>(round_to<T>(key * g[c])); }
    sums.product = thread::multiply_add(w[c], key, sums.product);
    sums.square = thread::multiply_add(s[c], s[c], sums.square);
  }
  return sums;
}

//! Span sums of `count` rows, whose r lie in shared.inverse where keys are rounded. The folded query is read from memory; warp
//! `warp` of `num_warps` takes every num_warps-th span.
template <class T, class Rows>
__device__ __forceinline__ void sum_keys(const route_parameters<T>& p,
                                         const route_storage<accumulate_t<T>>& shared,
                                         const Rows& rows, int count, key_rounding rounding,
                                         int warp, int num_warps)
{
  using accumulate = accumulate_t<T>;
  const thread::width_tree& tree = p.tree;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int at_once = tree.depth * 32;
#pragma unroll 1
  for (int k = 0; k < count; ++k) {
    const accumulate r = rounding == key_rounding::none ? accumulate{1} : shared.inverse[k];
#pragma unroll 1
    for (int first = warp * at_once; first < tree.num_chunks; first += num_warps * at_once) {
      key_sums<accumulate> of_lane;
      int chunk = first + lane;
#pragma unroll 1
      for (int place = 0; place < tree.depth; ++place, chunk += 32) {
        key_sums<accumulate> of_chunk;
        if (chunk < tree.num_chunks) { of_chunk = sum_key(p, rows, k, chunk, r, rounding); }
        of_lane.product = place == 0 ? of_chunk.product : of_lane.product + of_chunk.product;
        of_lane.square = place == 0 ? of_chunk.square : of_lane.square + of_chunk.square;
      }
      chunk -= 32;
      store_group_sums(of_lane.product, of_lane.square,
                       shared.sums + k * shared.stride + (chunk >> tree.span_shift),
                       rows_per_batch * shared.stride, tree.group_shift, chunk < tree.num_chunks);
    }
  }
}

//! Sum of the squares of row k times overflow_scale, by one warp; every lane gets it. For the rare row whose squares overflow.
template <class Rows>
[[nodiscard]] __device__ __forceinline__ typename Rows::accumulate sum_scaled_squares(
    const thread::width_tree& tree, const Rows& rows, int k)
{
  using accumulate = typename Rows::accumulate;
  constexpr int width = Rows::chunk_width;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  accumulate sum = 0;
#pragma unroll 1
  for (int chunk = lane; chunk < tree.num_chunks; chunk += 32) {
    const int count = tree.columns(chunk, width);
    const auto s =
        thread::widen_all<accumulate>(rows.load(k, chunk, tree.first_column(chunk, width), count));
#pragma unroll
    for (int c = 0; c < width; ++c) {
      const accumulate scaled =
          c < count ? s[c] * thread::overflow_scale<accumulate> : accumulate{0};
      sum = thread::multiply_add(scaled, scaled, sum);
    }
  }
  return butterfly_sum(sum, 32);
}

}  // namespace block::detail
MHAR_NAMESPACE_END
