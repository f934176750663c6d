// SPDX-License-Identifier: Apache-2.0
//! The columns of a lane whose warp has a whole position: every lane has chunks of one head.
#pragma once

#include <mhar/block/detail/route_columns.cuh>
#include <mhar/block/detail/route_finish.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A warp has the heads of a position or, of Split warps, its share of them. The warp's heads have the same number of lanes each;
//! chunk i of lane j of them is the head's chunk i*lanes + j. What plain_columns asks for holds; Chunks and Spans are those of a lane.
//!
//! Where a lane has an even number of chunks of a span, pairs of them change places in every second head of four lanes: eight lanes
//! that are served at a time would otherwise all want the same half of the banks. The tree adds them to the same bits.
template <class T, int Chunks, int Spans, int Split>
class warp_columns
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  //! `part` of Split.
  __device__ __forceinline__ warp_columns(const thread::width_tree& tree, int part)
      : lanes_shift_{tree.lanes_shift + Split / 2}
  {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    head_ = part * (tree.num_heads / Split) + (lane >> lanes_shift_);
    first_ = head_ * tree.chunks_per_head + (lane & (lanes() - 1));
    first_span_ = head_ * tree.spans_per_head;
    swap_ = Chunks / Spans % 2 == 0 && lanes() == 4 && (head_ & 1) != 0 ? 4 : 0;
  }

  //! As that of register_columns.
  __device__ __forceinline__ void forget_addresses() { asm volatile("" : "+r"(first_)); }

  [[nodiscard]] static constexpr __device__ int size() { return Chunks; }
  [[nodiscard]] static constexpr __device__ bool valid(int) { return true; }
  [[nodiscard]] static constexpr __device__ int count(int) { return chunk_width; }
  [[nodiscard]] __device__ __forceinline__ int chunk(int i) const
  {
    return first_ + i * lanes() + (i % 2 == 0 ? swap_ : -swap_);
  }
  //! What a chunk i that is odd is further than i*lanes() from the first one.
  [[nodiscard]] __device__ __forceinline__ int odd_shift() const { return -2 * swap_; }
  [[nodiscard]] __device__ __forceinline__ int column(int i) const
  {
    return chunk(i) * chunk_width;
  }
  [[nodiscard]] __device__ __forceinline__ int head(int) const { return head_; }
  //! Among the warp's own.
  [[nodiscard]] __device__ __forceinline__ int head_of_warp() const
  {
    return (static_cast<int>(threadIdx.x) & 31) >> lanes_shift_;
  }
  [[nodiscard]] __device__ __forceinline__ int first_span() const { return first_span_; }
  //! Of the warp's lanes those of a head, and the logarithm of their number.
  [[nodiscard]] __device__ __forceinline__ int lanes() const
  {
    // A span has at most 64 chunks.
    return Chunks / Spans == 16 ? 4 : 1 << lanes_shift_;
  }
  [[nodiscard]] __device__ __forceinline__ int lanes_shift() const { return lanes_shift_; }
  [[nodiscard]] __device__ __forceinline__ bool first_of_head() const
  {
    return (static_cast<int>(threadIdx.x) & (lanes() - 1)) == 0;
  }
  [[nodiscard]] __device__ __forceinline__ const values& mix(int i) const { return mixes_[i]; }
  __device__ __forceinline__ void set_mix(int i, const values& value) { mixes_[i] = value; }
  //! Eq. 5 for a row whose chunk i is chunk(i).
  template <bool Rescales, class Step, class Chunk>
  __device__ __forceinline__ void add_row(const Step& step, const Chunk& chunk)
  {
#pragma unroll
    for (int i = 0; i < Chunks; ++i) {
      const values s = chunk(i);
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) {
        if (Rescales) { mixes_[i][c] *= step.rescale; }
        mixes_[i][c] = thread::multiply_add(step.weight, s[c], mixes_[i][c]);
      }
    }
  }

  [[nodiscard]] __device__ __forceinline__ values load(const const_array& from, int i,
                                                       accumulate absent) const
  {
    return load_plain_parameter<accumulate, chunk_width>(from, column(i), absent);
  }
  [[nodiscard]] __device__ __forceinline__ values load(const const_matrix& from,
                                                       std::int64_t position, int i) const
  {
    return load_regular<T>(from, position * from.position_stride + column(i));
  }
  __device__ __forceinline__ void store(const matrix& to, std::int64_t position, int i,
                                        const values& value) const
  {
    store_regular<T>(to, position * to.position_stride + column(i), value);
  }

private:
  int lanes_shift_;
  int head_;
  int first_;
  int first_span_;
  int swap_;
  values mixes_[static_cast<std::size_t>(Chunks)];
};

//! The sum of vectors Base, Base + Step, ... below Count, as a butterfly of Count adds them, Count a power of two: what a lane does of
//! a tree whose first rounds stay in the lane.
template <int Count, int Base, int Step, class Value>
[[nodiscard]] __device__ __forceinline__ auto add_in_lane(const Value& value_of)
    -> decltype(value_of(0))
{
  static_assert((Count & (Count - 1)) == 0, "a group is a power of two");
  if constexpr (Step == Count) { return value_of(Base); }
  else {
    auto sum = add_in_lane<Count, Base, 2 * Step>(value_of);
    const auto other = add_in_lane<Count, Base + Step, 2 * Step>(value_of);
#pragma unroll
    for (int v = 0; v < static_cast<int>(sizeof(sum) / sizeof(sum[0])); ++v) { sum[v] += other[v]; }
    return sum;
  }
}
template <int Count, class Value>
[[nodiscard]] __device__ __forceinline__ auto add_in_lane(const Value& value_of)
    -> decltype(value_of(0))
{
  return add_in_lane<Count, 0, 1>(value_of);
}

//! The sum over a warp's heads of what all `lanes` lanes of a head have, in the order of the tree.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate add_heads(Accumulate sum, int lanes)
{
#pragma unroll
  for (int distance = 16; distance >= 4; distance /= 2) {
    if (distance >= lanes) { sum += __shfl_xor_sync(full_warp, sum, distance); }
  }
  return sum;
}

//! A head's spans are dealt to at least four lanes: a butterfly of eight, whichever of them exist.
template <class Accumulate, int Spans>
[[nodiscard]] __device__ __forceinline__ Accumulate
sum_spans_of_head(const thread::vector<Accumulate, Spans>& spans)
{
  static_assert(Spans <= 8, "two to a lane");
  return add_in_lane<8>([&](int span) {
    return thread::vector<Accumulate, 1>{{span < Spans ? spans[span] : Accumulate{0}}};
  })[0];
}

//! The sum of at most Most spans of a row, 40 or 64, in the order of the tree, by eight lanes, every fourth of the warp: the 32 lanes
//! that the tree deals them to, four to a lane. Spans that do not exist are 0.
template <int Most, class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate sum_spans_of_warp(const Accumulate* spans)
{
  static_assert(Most == 40 || Most == 64, "what a lane reads");
  const Accumulate* const of_lane = spans + ((static_cast<int>(threadIdx.x) & 31) >> 2);
  thread::vector<Accumulate, 4> lanes{
      {of_lane[0] + of_lane[32], of_lane[8], of_lane[16], of_lane[24]}};
  if constexpr (Most == 64) {
#pragma unroll
    for (int i = 1; i < 4; ++i) { lanes[i] += of_lane[32 + 8 * i]; }
  }
  Accumulate sum = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
#pragma unroll
  for (int distance = 16; distance >= 4; distance /= 2) {
    sum += __shfl_xor_sync(full_warp, sum, distance);
  }
  return sum;
}

//! As block_squares, by one warp. `spans` is scratch for the sums of spans, which other warps do not use.
template <class T, int Chunks, int Spans>
class warp_squares
{
public:
  using accumulate = accumulate_t<T>;

  __device__ __forceinline__ warp_squares(const route_parameters<T>& p, accumulate* spans)
      : p_{p}, spans_{spans}
  {
  }
  [[nodiscard]] __device__ __forceinline__ accumulate
  operator()(const warp_columns<T, Chunks, Spans, 1>& columns, accumulate scale, bool) const
  {
    __syncwarp();
#pragma unroll
    for (int span = 0; span < Spans; ++span) {
      accumulate sum = add_in_lane<Chunks / Spans>([&](int i) {
        return thread::vector<accumulate, 1>{
            {sum_of_squares(columns.mix(span * (Chunks / Spans) + i), scale)}};
      })[0];
#pragma unroll 1
      for (int distance = columns.lanes() >> 1; distance > 0; distance >>= 1) {
        sum += __shfl_xor_sync(full_warp, sum, distance);
      }
      spans_[columns.first_span() + span] = sum;
    }
    __syncwarp();
    return sum_spans_of_warp<40>(spans_);
  }

private:
  const route_parameters<T>& p_;
  accumulate* spans_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
