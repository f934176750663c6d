// SPDX-License-Identifier: Apache-2.0
//! From sums of a row's spans to its logit where a call has a few heads and nothing unusual: two lanes have a row.
#pragma once

#include <mhar/block/detail/decode_sums.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Sums of a call of 2 to 8 heads, each of up to 8 spans of 16 or more chunks, as route_decode asks for them. Of a row: squares of
//! spans 4k and 4k + 1, of 4k + 2 and 4k + 3, with zeros for those that it lacks, then products.
struct few_heads_sums
{
  static constexpr int max_heads = 8;
  static constexpr int spans_per_head = 8;
  static constexpr int spans = max_heads * spans_per_head;
  //! Lanes with a row each read from different banks.
  static constexpr int stride = 2 * spans + 4;
  //! Of a block, of which a multiprocessor is to have room for two: more leave too few registers for deep units.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int max_warps(int depth) noexcept
  {
    return depth == 1 ? 20 : 18;
  }
  //! Of the columns that a warp mixes: half of it each.
  static constexpr int heads_per_warp = 2;
  //! Summed together over `depth` chunks a lane: sums across lanes cost as much for two as for one.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int rows_per_task(int depth) noexcept
  {
    return depth == 1 ? 2 : 1;
  }

  template <class Accumulate>
  static __device__ __forceinline__ void clear_absent_spans(Accumulate* sums, int rows,
                                                            int num_spans, int warp, int warps)
  {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    for (int row = warp; row < rows; row += warps) {
      for (int span = num_spans + lane; span < spans; span += 32) {
        sums[row * stride + place_of_square(span)] = 0;
      }
    }
  }
  [[nodiscard]] static __device__ __forceinline__ int head_of(const thread::width_tree& tree,
                                                              int chunk)
  {
    return tree.head_of(chunk);
  }
  //! That a block gets: all squares, and the products of the heads of its chunks, `first` to `last`.
  [[nodiscard]] static __device__ __forceinline__ int values_per_row(const thread::width_tree& tree,
                                                                     int first, int last)
  {
    return tree.num_spans + (tree.head_of(last) - tree.head_of(first) + 1) * tree.spans_per_head;
  }
  //! Bit b: block b, of `chunks` chunks, has some of the head of `chunk`.
  [[nodiscard]] static __device__ __forceinline__ unsigned receivers(const thread::width_tree& tree,
                                                                     int chunk, int chunks)
  {
    const int first = tree.head_of(chunk) * tree.chunks_per_head;
    const int last = (first + tree.chunks_per_head - 1) / chunks;
    return (2u << last) - (1u << first / chunks);
  }
  //! What lanes have of a span of a row, whose sums lie at `sums`, to all blocks, at most eight. `chunk` is one of the lane's.
  template <class Accumulate>
  static __device__ __forceinline__ void send(const key_sums<Accumulate> (&of_lane)[1], int,
                                              cluster_mailbox& mailbox, Accumulate* sums,
                                              const thread::width_tree& tree, int chunk,
                                              unsigned receivers)
  {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const Accumulate sum = row_sum_of_half(of_lane[0]);
    const bool square = (lane & 16) != 0;
    const int block = lane & 15;
    const int span = chunk >> tree.span_shift;
    if (block < cluster::size() && (square || (receivers >> block & 1u) != 0)) {
      mailbox.send(sums + (square ? place_of_square(span) : spans + span), block, sum);
    }
  }
  //! The same of two rows, of which `count` exist.
  template <class Accumulate>
  static __device__ __forceinline__ void send(const key_sums<Accumulate> (&of_lane)[2], int count,
                                              cluster_mailbox& mailbox, Accumulate* sums,
                                              const thread::width_tree& tree, int chunk,
                                              unsigned receivers)
  {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const bool whole = tree.group == 32;
    key_sums<Accumulate> first = of_lane[0];
    key_sums<Accumulate> second = of_lane[1];
    if (whole) {
      join_halves(first);
      join_halves(second);
    }
    // Of 16 lanes the upper half goes on with the squares, of 8 with the second row.
    const bool square = (lane & 8) != 0;
    const int row = lane >> 2 & 1;
    Accumulate sum = part_with<4>(row != 0, part_with<8>(square, first.product, first.square),
                                  part_with<8>(square, second.product, second.square));
    sum += __shfl_xor_sync(full_warp, sum, 2);
    sum += __shfl_xor_sync(full_warp, sum, 1);
    const Accumulate other = __shfl_xor_sync(full_warp, sum, 16);
    if (row >= count) { return; }
    const bool upper = lane >= 16;
    const int span = chunk >> tree.span_shift;
    Accumulate* const of_row = sums + row * stride;
    const int block = lane & 3;
    if (square) {
      // Both halves of the warp have both spans, or the same one.
      const int to = upper ? block + 4 : block;
      if (to >= cluster::size()) { return; }
      if (whole) { mailbox.send(of_row + place_of_square(span), to, sum); }
      else {
        mailbox.send_pair(of_row + place_of_square(span & ~1), to, upper ? other : sum,
                          upper ? sum : other);
      }
      return;
    }
    if (whole && upper) { return; }
    Accumulate* const place = of_row + spans + span;
    if ((receivers >> block & 1u) != 0) { mailbox.send(place, block, sum); }
    if ((receivers >> (block + 4) & 1u) != 0) { mailbox.send(place, block + 4, sum); }
  }
  //! Eq. 1 of row n in lanes n and n + 16, each with a head of its own, of the first `count` rows; lanes past them have -inf.
  template <class T, class Pointers>
  [[nodiscard]] static __device__ __forceinline__ accumulate_t<T> logit_of_lane(
      const route_parameters<T>& p, const Pointers& rows, std::int64_t position, int count,
      const accumulate_t<T>* sums, accumulate_t<T> reciprocal, int head)
  {
    using accumulate = accumulate_t<T>;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int row = (lane & 15) < count ? lane & 15 : count - 1;
    const int odd = lane >> 4;
    const accumulate* const of_row = sums + row * stride;
    // The butterfly over the lanes that the tree deals spans to, but for its last two rounds.
    accumulate squares[16];
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const accumulate* const from = of_row + odd * (spans / 2) + i;
      const auto near = thread::load_vector<accumulate, 4>(from);
      const auto far = thread::load_vector<accumulate, 4>(from + 16);
#pragma unroll
      for (int k = 0; k < 4; ++k) { squares[i + k] = near[k] + far[k]; }
    }
    add_upper<8>(squares);
    add_upper<4>(squares);
    add_upper<2>(squares);
    // Of the other half's head, too: each has the spans that the other lacks.
    const int other = __shfl_xor_sync(full_warp, head, 16);
    const accumulate own =
        half_of_head(of_row + spans + head * p.tree.spans_per_head, odd, p.tree.spans_per_head);
    const accumulate given =
        half_of_head(of_row + spans + other * p.tree.spans_per_head, odd, p.tree.spans_per_head);
    squares[0] += __shfl_xor_sync(full_warp, squares[0], 16);
    squares[1] += __shfl_xor_sync(full_warp, squares[1], 16);
    const accumulate square = squares[0] + squares[1];
    const accumulate product = own + __shfl_xor_sync(full_warp, given, 16);
    accumulate inverse = quick_inverse_rms(square, reciprocal, p.tree.width, p.eps);
    const unsigned overflows = __ballot_sync(full_warp, thread::overflowed(square));
    if (overflows != 0) {
      inverse =
          rescaled_rows(p, rows_in_memory<T, Pointers>{p, rows, position, 0}, inverse, overflows);
      inverse = __shfl_sync(full_warp, inverse, lane & 15);
    }
    return (lane & 15) < count ? thread::multiply_add(inverse, product, accumulate{0})
                               : -thread::infinity<accumulate>;
  }
  //! step_of_lane in each half of the warp.
  template <class Accumulate>
  [[nodiscard]] static __device__ __forceinline__ prefix_step<Accumulate> step_of_lane(
      Accumulate logit, int sources)
  {
    return detail::step_of_lane<16>(logit, sources);
  }

private:
  //! A round of the butterfly. A loop over rounds is not unrolled, and keeps the values in memory.
  template <int Half, class Accumulate>
  static __device__ __forceinline__ void add_upper(Accumulate (&values)[16])
  {
#pragma unroll
    for (int i = 0; i < Half; ++i) { values[i] += values[i + Half]; }
  }
  //! Adds up both halves of the warp.
  template <class Accumulate>
  static __device__ __forceinline__ void join_halves(key_sums<Accumulate>& sums)
  {
    sums.product += __shfl_xor_sync(full_warp, sums.product, 16);
    sums.square += __shfl_xor_sync(full_warp, sums.square, 16);
  }
  //! Adds up with the lane `Offset` away what one of both goes on with: `upper` ones with the second value.
  template <int Offset, class Accumulate>
  [[nodiscard]] static __device__ __forceinline__ Accumulate part_with(bool upper, Accumulate first,
                                                                       Accumulate second)
  {
    return (upper ? second : first) + __shfl_xor_sync(full_warp, upper ? first : second, Offset);
  }
  //! Of a head's products those of even or odd spans, as the butterfly over the tree's lanes adds them up.
  template <class Accumulate>
  [[nodiscard]] static __device__ __forceinline__ Accumulate
  half_of_head(const Accumulate* products, int odd, int count)
  {
    Accumulate values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = 2 * i + odd < count ? products[2 * i + odd] : Accumulate{0};
    }
    return values[0] + values[2] + (values[1] + values[3]);
  }
  [[nodiscard]] static __device__ __forceinline__ int place_of_square(int span)
  {
    return (span >> 1 & 1) * (spans / 2) + (span >> 2) * 2 + (span & 1);
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
