// SPDX-License-Identifier: Apache-2.0
//! The arithmetic on whole batches of rows in shared memory: sums over the width, and the mix.
#pragma once

#include <mhar/block/detail/chunk_sums.cuh>
#include <mhar/block/detail/route_columns.cuh>
#include <mhar/block/detail/route_keys.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Elements of chunk i of a thread's columns, where `row` is its first chunk.
template <class T>
[[nodiscard]] __device__ __forceinline__ thread::vector<T> load_chunk(const char* row, int i)
{
  return thread::load_vector(reinterpret_cast<const T*>(row + i * 512));
}

//! Sums of <w, s> and s^2 over the spans of a warp's columns. Joined: a thread's chunks all lie in one span, so their sums are
//! one. Then every chunk of every thread exists.
template <class T, int ChunksPerThread, bool Joined>
class resident_sums
{
public:
  using accumulate = accumulate_t<T>;
  using columns_type = register_columns<T, ChunksPerThread>;
  static constexpr int chunk_width = thread::chunk_width<T>;

  //! Sums lie as resident_storage says.
  __device__ __forceinline__ resident_sums(const route_parameters<T>& p,
                                           const columns_type& columns, int stride,
                                           int squares_distance)
      : columns_{columns},
        row_stride_{stride},
        squares_distance_{squares_distance},
        group_shift_{whole_warps ? 5 : p.tree.group_shift},
        half_{(1 << group_shift_) >> 1},
        of_second_row_{(lane() & half_) != 0},
        of_second_value_{(lane() & quarter()) != 0},
        place_of_pair_{(of_second_row_ ? stride : 0) + (of_second_value_ ? squares_distance : 0)},
        place_of_one_{of_second_row_ ? squares_distance : 0}
  {
#pragma unroll
    for (int i = 0; i < num_sums; ++i) { spans_[i] = columns.chunk(i) >> p.tree.span_shift; }
  }

  //! Rows of a batch, two at a time as long as there are two.
  __device__ __forceinline__ void operator()(const char* stage, int row_bytes, int count,
                                             accumulate* sums) const
  {
    const char* row = stage + columns_.chunk(0) * 16;
    int k = 0;
#pragma unroll 1
    for (; k + 1 < count; k += 2, row += 2 * row_bytes, sums += 2 * row_stride_) {
      thread::vector<accumulate, 4> of_lane{};
#pragma unroll
      for (int i = 0; i < ChunksPerThread; ++i) {
        thread::vector<accumulate, 4> of_chunk{};
        if (Joined || columns_.valid(i)) {
          multiply(of_chunk[0], of_chunk[1], i, load_chunk<T>(row, i));
          multiply(of_chunk[2], of_chunk[3], i, load_chunk<T>(row + row_bytes, i));
        }
        add_chunk<Joined>(of_lane, of_chunk, i);
        if (!Joined || i == ChunksPerThread - 1) { store_pair(of_lane, i, sums); }
      }
    }
    if (k == count) { return; }
    thread::vector<accumulate, 2> of_lane{};
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      thread::vector<accumulate, 2> of_chunk{};
      if (Joined || columns_.valid(i)) {
        multiply(of_chunk[0], of_chunk[1], i, load_chunk<T>(row, i));
      }
      add_chunk<Joined>(of_lane, of_chunk, i);
      if (!Joined || i == ChunksPerThread - 1) { store_one(of_lane[0], of_lane[1], i, sums); }
    }
  }

private:
  //! A span of several chunks per lane has whole warps for groups.
  static constexpr bool whole_warps = Joined && ChunksPerThread > 1;
  static constexpr int num_sums = Joined ? 1 : ChunksPerThread;

  [[nodiscard]] static __device__ __forceinline__ int lane()
  {
    return static_cast<int>(threadIdx.x) & 31;
  }
  [[nodiscard]] __device__ __forceinline__ int half() const { return whole_warps ? 16 : half_; }
  [[nodiscard]] __device__ __forceinline__ int quarter() const { return half() >> 1; }

  __device__ __forceinline__ void multiply(accumulate& product, accumulate& square, int i,
                                           const thread::vector<T>& raw) const
  {
    add_products(product, square, columns_.weight(i), thread::widen_all<accumulate>(raw));
  }

  //! What store_group_sums does, with all that depends on the lane alone found before.
  __device__ __forceinline__ void store_pair(const thread::vector<accumulate, 4>& values, int i,
                                             accumulate* sums) const
  {
    if (!whole_warps && group_shift_ < 2) {
      store_one(values[0], values[1], i, sums);
      store_one(values[2], values[3], i, sums + row_stride_);
      return;
    }
    const accumulate a = exchange(values[0], values[2], of_second_row_, half());
    const accumulate b = exchange(values[1], values[3], of_second_row_, half());
    const accumulate sum = add_lanes(exchange(a, b, of_second_value_, quarter()), quarter() >> 1);
    if (writes(i, quarter())) { sums[place_of_pair_ + spans_[Joined ? 0 : i]] = sum; }
  }
  __device__ __forceinline__ void store_one(accumulate product, accumulate square, int i,
                                            accumulate* sums) const
  {
    if (!whole_warps && group_shift_ == 0) {
      if (columns_.valid(i)) {
        sums[spans_[Joined ? 0 : i]] = product;
        sums[squares_distance_ + spans_[Joined ? 0 : i]] = square;
      }
      return;
    }
    const accumulate sum = add_lanes(exchange(product, square, of_second_row_, half()), quarter());
    if (writes(i, half())) { sums[place_of_one_ + spans_[Joined ? 0 : i]] = sum; }
  }
  //! The lanes of the upper half go on with the second value, the others with the first: one shuffle for two sums.
  [[nodiscard]] static __device__ __forceinline__ accumulate exchange(accumulate first,
                                                                      accumulate second, bool upper,
                                                                      int distance)
  {
    return (upper ? second : first) + __shfl_xor_sync(full_warp, upper ? first : second, distance);
  }
  [[nodiscard]] static __device__ __forceinline__ accumulate add_lanes(accumulate sum, int distance)
  {
    if constexpr (whole_warps) {
#pragma unroll
      for (int d = 8; d > 0; d /= 2) {
        if (d <= distance) { sum += __shfl_xor_sync(full_warp, sum, d); }
      }
    }
    else {
#pragma unroll 1
      for (int d = distance; d > 0; d >>= 1) { sum += __shfl_xor_sync(full_warp, sum, d); }
    }
    return sum;
  }
  //! One of `lanes` lanes, a power of two, stores what they all have.
  [[nodiscard]] __device__ __forceinline__ bool writes(int i, int lanes) const
  {
    return (Joined || columns_.valid(i)) && (lane() & (lanes - 1)) == 0;
  }

  const columns_type& columns_;
  int row_stride_;
  int squares_distance_;
  int group_shift_;
  int half_;
  bool of_second_row_;
  bool of_second_value_;
  int place_of_pair_;
  int place_of_one_;
  int spans_[static_cast<std::size_t>(num_sums)];
};

//! The mix of a thread's columns (eq. 5), a batch at a time.
template <class T, int ChunksPerThread, bool Joined>
class resident_mix
{
public:
  using accumulate = accumulate_t<T>;
  using columns_type = plain_columns<T, ChunksPerThread, Joined>;
  using step = thread::softmax_step<accumulate>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ resident_mix(const route_parameters<T>& p, columns_type& columns)
      : num_heads_{p.tree.num_heads}, columns_{columns}
  {
  }
  //! Steps of a row lie num_heads behind those of the row before.
  __device__ __forceinline__ void operator()(const char* stage, int row_bytes, int count,
                                             const step* steps)
  {
    const char* row = stage + (columns_.valid(0) ? columns_.chunk(0) : 0) * 16;
    int k = 0;
#pragma unroll 1
    for (; k + at_once <= count; k += at_once) {
      add_rows<at_once>(row, row_bytes, steps);
      row += at_once * row_bytes;
      steps += at_once * num_heads_;
    }
    if constexpr (at_once > 1) {
#pragma unroll 1
      for (; k < count; ++k, row += row_bytes, steps += num_heads_) {
        add_rows<1>(row, row_bytes, steps);
      }
    }
  }

private:
  //! Rows whose loads are under way together.
  static constexpr int at_once = ChunksPerThread == 1 ? 4 : ChunksPerThread == 2 ? 2 : 1;
  static constexpr int num_heads_of_thread = Joined ? 1 : ChunksPerThread;

  template <int Rows>
  __device__ __forceinline__ void add_rows(const char* row, int row_bytes, const step* steps)
  {
    thread::vector<T> raw[static_cast<std::size_t>(Rows)]
                         [static_cast<std::size_t>(ChunksPerThread)];
    step next[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(num_heads_of_thread)];
    // A factor of 1 changes nothing, and it is what most rows after the first few have.
    bool rescales = false;
#pragma unroll
    for (int k = 0; k < Rows; ++k) {
#pragma unroll
      for (int i = 0; i < num_heads_of_thread; ++i) {
        next[k][i] = steps[k * num_heads_ + columns_.head(i)];
        rescales = rescales || next[k][i].rescale != accumulate{1};
      }
#pragma unroll
      for (int i = 0; i < ChunksPerThread; ++i) {
        // A chunk that does not exist is another's, and not stored.
        raw[k][i] = load_chunk<T>(row + k * row_bytes, columns_.valid(i) ? i : 0);
      }
    }
    // By the whole warp, whose lanes may serve several heads.
    if (Joined ? rescales : __any_sync(full_warp, rescales)) {
#pragma unroll
      for (int k = 0; k < Rows; ++k) { add_row<true>(raw[k], next[k]); }
    }
    else {
#pragma unroll
      for (int k = 0; k < Rows; ++k) { add_row<false>(raw[k], next[k]); }
    }
  }
  template <bool Rescales>
  __device__ __forceinline__ void add_row(const thread::vector<T>* raw, const step* next)
  {
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      const step now = next[Joined ? 0 : i];
      const values s = thread::widen_all<accumulate>(raw[i]);
      values mix = columns_.mix(i);
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) {
        if (Rescales) { mix[c] *= now.rescale; }
        mix[c] = thread::multiply_add(now.weight, s[c], mix[c]);
      }
      columns_.set_mix(i, mix);
    }
  }

  int num_heads_;
  columns_type& columns_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
