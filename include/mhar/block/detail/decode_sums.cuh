// SPDX-License-Identifier: Apache-2.0
//! From sums of a row's spans to its logit where a call has one head and nothing unusual: what route_decode.cuh and
//! route_halves.cuh share.
#pragma once

#include <mhar/block/detail/cluster.cuh>
#include <mhar/block/detail/cluster_heads.cuh>
#include <mhar/block/detail/cluster_sums.cuh>
#include <mhar/block/detail/quick_math.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Spans of a row, at most, and floats that the sums of one take: two for each, and sixteen bytes, so that lanes with a row each
//! read from different banks.
inline constexpr int decode_spans = 16;
inline constexpr int decode_stride = 2 * decode_spans + 4;

//! Rows, at most: lanes of half a warp have one each.
inline constexpr int decode_rows = 16;

//! Four elements of the folded query.
[[nodiscard]] __device__ __forceinline__ float4 fold_quad(float4 query, const float4& factor,
                                                          float scale)
{
  query.x = query.x * scale * factor.x;
  query.y = query.y * scale * factor.y;
  query.z = query.z * scale * factor.z;
  query.w = query.w * scale * factor.w;
  return query;
}

//! A chunk of the folded query, whose quads lie `distance` apart.
template <class T>
[[nodiscard]] __device__ __forceinline__ thread::vector<accumulate_t<T>, thread::chunk_width<T>>
load_folded(const float4* from, int distance)
{
  thread::vector<accumulate_t<T>, thread::chunk_width<T>> weights;
#pragma unroll
  for (int quad = 0; quad < thread::chunk_width<T> / 4; ++quad) {
    const float4 part = from[quad * distance];
    weights[4 * quad] = part.x;
    weights[4 * quad + 1] = part.y;
    weights[4 * quad + 2] = part.z;
    weights[4 * quad + 3] = part.w;
  }
  return weights;
}

//! An address that is made here, not where it is used.
template <class Element>
[[nodiscard]] __device__ __forceinline__ Element* kept_address(Element* from)
{
  std::size_t address = __cvta_generic_to_global(from);
  asm volatile("" : "+l"(address));
  return static_cast<Element*>(__cvta_global_to_generic(address));
}

//! Zeros where a row has no spans. By `warps` warps.
template <class Accumulate>
__device__ __forceinline__ void clear_absent_spans(Accumulate* sums, int rows, int spans, int warp,
                                                   int warps)
{
  const int at = 2 * spans + (static_cast<int>(threadIdx.x) & 31);
  for (int row = warp; row < rows; row += warps) {
    if (at < decode_stride) { sums[row * decode_stride + at] = 0; }
  }
}

//! Adds up what lanes have of a span: the lower half of them gets the product, the upper half the square.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate
row_sum_of_half(const key_sums<Accumulate>& of_lane)
{
  const int lane = static_cast<int>(threadIdx.x) & 31;
  // The upper half of the lanes goes on with the squares.
  const bool upper = (lane & 16) != 0;
  Accumulate sum = upper ? of_lane.square : of_lane.product;
  sum += __shfl_xor_sync(full_warp, upper ? of_lane.product : of_lane.square, 16);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) { sum += __shfl_xor_sync(full_warp, sum, offset); }
  return sum;
}

//! The same, sent to `place` of all blocks, at most sixteen.
template <class Accumulate>
__device__ __forceinline__ void send_row_sums(const key_sums<Accumulate>& of_lane,
                                              cluster_mailbox& mailbox, Accumulate* place)
{
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const Accumulate sum = row_sum_of_half(of_lane);
  const int block = lane & 15;
  if (block < cluster::size()) { mailbox.send(place + lane / 16, block, sum); }
}

//! Where a warp's sums of rows go in all blocks, at most eight, and the mailbox that counts them: found once for many rows.
template <class Accumulate>
class row_sum_places
{
public:
  //! `distance` rows lie between two that are sent together.
  __device__ __forceinline__ row_sum_places(const Accumulate* place, const cluster_mailbox* mailbox,
                                            int distance)
  {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int block = lane & 7;
    const bool sends = block < cluster::size();
    const bool second = (lane & 8) != 0;
    sends_one_ = sends && !second;
    sends_two_ = sends;
    place_ = cluster_place::of(place + lane / 16 + (second ? distance * decode_stride : 0),
                               sends ? block : 0);
    box_ = cluster_place::of(mailbox, sends ? block : 0);
  }
  __device__ __forceinline__ void send(const key_sums<Accumulate>& of_lane) const
  {
    const Accumulate sum = row_sum_of_half(of_lane);
    if (sends_one_) { place_.send(sum, box_); }
  }
  __device__ __forceinline__ void send(const key_sums<Accumulate>& of_first,
                                       const key_sums<Accumulate>& of_second) const
  {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const bool upper = (lane & 16) != 0;
    Accumulate first = upper ? of_first.square : of_first.product;
    Accumulate second = upper ? of_second.square : of_second.product;
    first += __shfl_xor_sync(full_warp, upper ? of_first.product : of_first.square, 16);
    second += __shfl_xor_sync(full_warp, upper ? of_second.product : of_second.square, 16);
    const bool takes_second = (lane & 8) != 0;
    Accumulate sum = takes_second ? second : first;
    sum += __shfl_xor_sync(full_warp, takes_second ? first : second, 8);
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(full_warp, sum, offset);
    }
    if (sends_two_) { place_.send(sum, box_); }
  }
  //! `rows` rows and a mailbox further.
  __device__ __forceinline__ void advance(int rows)
  {
    place_.address += static_cast<std::uint32_t>(rows) * decode_stride * sizeof(Accumulate);
    box_.address += sizeof(cluster_mailbox);
  }

private:
  cluster_place place_;
  cluster_place box_;
  bool sends_one_;
  bool sends_two_;
};

//! The inverse rms of the lane's row: rows whose squares overflow are read once more.
template <class T, class Rows>
[[nodiscard]] __device__ __noinline__ accumulate_t<T> rescaled_rows(const route_parameters<T>& p,
                                                                    const Rows rows,
                                                                    accumulate_t<T> inverse,
                                                                    unsigned overflows)
{
#pragma unroll 1
  for (int row = 0; row < p.num_rows; ++row) {
    if ((overflows >> row & 1u) == 0) { continue; }
    const accumulate_t<T> of_row = rescaled_inverse_rms(p, rows, row);
    if ((static_cast<int>(threadIdx.x) & 31) == row) { inverse = of_row; }
  }
  return inverse;
}

//! Eq. 1 of the lane's row, of the first `count` ones; lanes past them have -inf.
template <class T, class Pointers>
[[nodiscard]] __device__ __forceinline__ accumulate_t<T> logit_of_lane(
    const route_parameters<T>& p, const Pointers& rows, std::int64_t position, int count,
    const accumulate_t<T>* sums, accumulate_t<T> reciprocal)
{
  using accumulate = accumulate_t<T>;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int row = lane < count ? lane : count - 1;
  // The butterfly over the lanes that the tree deals spans to, of which the upper half has none.
  const accumulate* const from = sums + row * decode_stride;
  accumulate products[8];
  accumulate squares[8];
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const auto low = thread::load_vector<accumulate, 4>(from + 2 * i);
    const auto high = thread::load_vector<accumulate, 4>(from + 2 * (i + 8));
    products[i] = low[0] + high[0];
    squares[i] = low[1] + high[1];
    products[i + 1] = low[2] + high[2];
    squares[i + 1] = low[3] + high[3];
  }
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) {
      products[i] += products[i + half];
      squares[i] += squares[i + half];
    }
  }
  accumulate inverse = quick_inverse_rms(squares[0], reciprocal, p.tree.width, p.eps);
  const unsigned overflows = __ballot_sync(full_warp, thread::overflowed(squares[0]));
  if (overflows != 0) {
    inverse =
        rescaled_rows(p, rows_in_memory<T, Pointers>{p, rows, position, 0}, inverse, overflows);
  }
  return lane < count ? thread::multiply_add(inverse, products[0], accumulate{0})
                      : -thread::infinity<accumulate>;
}

//! Sums of a call of one head as route_decode asks for them.
struct one_head_sums
{
  static constexpr int stride = decode_stride;
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int max_warps(int) noexcept { return 18; }
  static constexpr int heads_per_warp = 1;
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int rows_per_task(int) noexcept { return 1; }

  template <class Accumulate>
  static __device__ __forceinline__ void clear_absent_spans(Accumulate* sums, int rows, int spans,
                                                            int warp, int warps)
  {
    detail::clear_absent_spans(sums, rows, spans, warp, warps);
  }
  [[nodiscard]] static __device__ __forceinline__ int head_of(const thread::width_tree&, int)
  {
    return 0;
  }
  [[nodiscard]] static __device__ __forceinline__ int values_per_row(const thread::width_tree& tree,
                                                                     int, int)
  {
    return 2 * tree.num_spans;
  }
  [[nodiscard]] static __device__ __forceinline__ unsigned receivers(const thread::width_tree&, int,
                                                                     int)
  {
    return 0;
  }
  //! What lanes have of a span of a row, whose sums lie at `sums`, to all blocks. `chunk` is one of the lane's.
  template <class Accumulate>
  static __device__ __forceinline__ void send(const key_sums<Accumulate> (&of_lane)[1], int,
                                              cluster_mailbox& mailbox, Accumulate* sums,
                                              const thread::width_tree& tree, int chunk, unsigned)
  {
    send_row_sums(of_lane[0], mailbox, sums + 2 * (chunk >> tree.span_shift));
  }
  template <class T, class Pointers>
  [[nodiscard]] static __device__ __forceinline__ accumulate_t<T> logit_of_lane(
      const route_parameters<T>& p, const Pointers& rows, std::int64_t position, int count,
      const accumulate_t<T>* sums, accumulate_t<T> reciprocal, int)
  {
    return detail::logit_of_lane(p, rows, position, count, sums, reciprocal);
  }
  template <class Accumulate>
  [[nodiscard]] static __device__ __forceinline__ prefix_step<Accumulate> step_of_lane(
      Accumulate logit, int sources)
  {
    return detail::step_of_lane(logit, sources);
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
