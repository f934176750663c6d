// SPDX-License-Identifier: Apache-2.0
//! The forward of one position by one block (eq. 1 to 5): sums over the width, softmax steps of the heads, mix.
#pragma once

#include <mhar/block/detail/route_heads.cuh>
#include <mhar/block/detail/route_keys.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Columns holds what each thread knows of its columns. All threads of the block call every member function. Loops over rows
//! are not unrolled: there are enough warps to hide their latency, and the code has to fit the instruction cache.
template <class T, class Columns>
class route_core
{
public:
  using accumulate = accumulate_t<T>;
  using storage = route_storage<accumulate>;
  using step = thread::softmax_step<accumulate>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ route_core(const route_parameters<T>& p, const storage& shared,
                                        Columns& columns)
      : p_{p},
        shared_{shared},
        columns_{columns},
        heads_{p, warp_of_thread(), static_cast<int>(blockDim.x) / 32}
  {
  }

  //! Once per block: the folded query, and the null source's logits. At most four barriers.
  __device__ __forceinline__ void begin()
  {
    columns_.load_weights(p_);
    if (!p_.null_source) { return; }
    const null_row<T> null{p_};
    sum_keys(p_, shared_, null, 1, key_rounding::none, warp_of_thread(), num_warps());
    __syncthreads();
    if (p_.rounding != key_rounding::none) { round_keys(null, 1); }
    heads_.find_null_logits(shared_, null);
    __syncthreads();
  }

  //! Rows [first, first + count) of a position, count <= rows_per_batch. The last batch, which may be empty, completes the
  //! softmax. Two barriers, four with rounded keys.
  template <class Rows>
  __device__ __forceinline__ void take(const Rows& rows, std::int64_t position, int first,
                                       int count)
  {
    if constexpr (Rows::keeps_changes) {
      const int updated = p_.updated_row - first;
      if (updated >= 0 && updated < count) { rows.update(p_, columns_, position, updated); }
    }
    sum_rows(rows, count);
    __syncthreads();
    if (count > 0 && p_.rounding != key_rounding::none) { round_keys(rows, count); }
    heads_.advance(shared_, rows, position, first, count);
    __syncthreads();
    if (first == 0) { start_mix(); }
    mix_rows(rows, first, count);
  }

private:
  using two_sums = key_sums<accumulate>;

  [[nodiscard]] static __device__ __forceinline__ int num_warps()
  {
    return static_cast<int>(blockDim.x) / 32;
  }

  //! Span sums of <w, s> and s^2 for the rows of a batch.
  template <class Rows>
  __device__ __forceinline__ void sum_rows(const Rows& rows, int count)
  {
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      accumulate* const sums = shared_.sums + k * shared_.stride;
      two_sums of_lane;
#pragma unroll
      for (int i = 0; i < columns_.size(); ++i) {
        const two_sums of_chunk = sum_chunk(rows, k, i);
        add(of_lane, of_chunk, i, sums);
      }
    }
  }
  template <class Rows>
  [[nodiscard]] __device__ __forceinline__ two_sums sum_chunk(const Rows& rows, int k, int i) const
  {
    two_sums sums;
    if (!columns_.valid(i)) { return sums; }
    const values s = thread::widen_all<accumulate>(
        rows.load(k, columns_.chunk(i), columns_.column(i), columns_.count(i)));
    const values& w = columns_.weight(i);
#pragma unroll
    for (int c = 0; c < chunk_width; ++c) {
      sums.product = thread::multiply_add(w[c], s[c], sums.product);
      sums.square = thread::multiply_add(s[c], s[c], sums.square);
    }
    return sums;
  }
  //! Adds the sums of chunk i to those of the lane's span, and stores the span's when the chunk is its last.
  __device__ __forceinline__ void add(two_sums& of_lane, const two_sums& of_chunk, int i,
                                      accumulate* sums) const
  {
    const int place = i & (p_.tree.depth - 1);
    of_lane.product = place == 0 ? of_chunk.product : of_lane.product + of_chunk.product;
    of_lane.square = place == 0 ? of_chunk.square : of_lane.square + of_chunk.square;
    if (place == p_.tree.depth - 1) {
      store_group_sums(of_lane.product, of_lane.square,
                       sums + (columns_.chunk(i) >> p_.tree.span_shift),
                       rows_per_batch * shared_.stride, p_.tree.group_shift, columns_.valid(i));
    }
  }

  //! Replaces the sums of <w, s> by those of <w, key>, which need r first. Two barriers.
  template <class Rows>
  __device__ __forceinline__ void round_keys(const Rows& rows, int count)
  {
    if (warp_of_thread() == 0) {
      const auto inverse = heads_.inverse_rms(shared_, rows, count);
#pragma unroll
      for (int k = 0; k < rows_per_batch; ++k) {
        if (k < count && threadIdx.x == 0) { shared_.inverse[k] = inverse[k]; }
      }
    }
    __syncthreads();
    sum_keys(p_, shared_, rows, count, p_.rounding, warp_of_thread(), num_warps());
    __syncthreads();
  }

  //! Eq. 5 begins with the null source, or with nothing.
  __device__ __forceinline__ void start_mix()
  {
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      if (!columns_.valid(i)) { continue; }
      values mix{};
      if (p_.null_source &&
          shared_.null_logits[columns_.head(i)] != -thread::infinity<accumulate>) {
        mix = null_row<T>{p_}.load(0, columns_.chunk(i), columns_.column(i), columns_.count(i));
      }
      columns_.set_mix(i, mix);
    }
  }

  template <class Rows>
  __device__ __forceinline__ void mix_rows(const Rows& rows, int first, int count)
  {
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
#pragma unroll
      for (int i = 0; i < columns_.size(); ++i) {
        if (!columns_.valid(i)) { continue; }
        const auto row = rows.load(k, columns_.chunk(i), columns_.column(i), columns_.count(i));
        const values s = thread::widen_all<accumulate>(row);
        const step next = shared_.steps[k * p_.tree.num_heads + columns_.head(i)];
        values mix = columns_.mix(i);
        // A factor of 1 changes nothing, and it is what most rows after the first few have.
        if (next.rescale != accumulate{1}) {
#pragma unroll
          for (int c = 0; c < chunk_width; ++c) { mix[c] *= next.rescale; }
        }
#pragma unroll
        for (int c = 0; c < chunk_width; ++c) {
          mix[c] = thread::multiply_add(next.weight, s[c], mix[c]);
        }
        columns_.set_mix(i, mix);
        if constexpr (!Rows::keeps_changes) {
          if (first + k == p_.updated_row) {
            rows.store_updated(row, columns_.column(i), columns_.count(i));
          }
        }
      }
    }
  }

  const route_parameters<T>& p_;
  const storage& shared_;
  Columns& columns_;
  route_heads<T> heads_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
