// SPDX-License-Identifier: Apache-2.0
//! The forward as a stream of batches: warps that own columns sum one batch and mix the one before it, while other warps turn
//! sums into softmax steps.
#pragma once

#include <mhar/block/detail/named_barrier.cuh>
#include <mhar/block/detail/route_finish.cuh>
#include <mhar/block/detail/route_heads.cuh>
#include <mhar/block/detail/row_stages.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Joined: a thread's chunks all lie in one span, so their sums are one. Then every chunk of every thread exists.
template <class T, int ChunksPerThread, bool Joined>
class column_warps
{
public:
  using accumulate = accumulate_t<T>;
  using columns_type = register_columns<T, ChunksPerThread>;
  using storage = route_storage<accumulate>;
  using step = thread::softmax_step<accumulate>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ column_warps(const route_parameters<T>& p, columns_type& columns)
      : p_{p}, columns_{columns}
  {
  }

  //! Span sums of <w, s> and s^2 for the rows of a batch.
  __device__ __forceinline__ void sum(const char* stage, int row_bytes, int count, accumulate* sums,
                                      int stride) const
  {
    const char* row = stage + columns_.chunk(0) * 16;
#pragma unroll 1
    for (int k = 0; k < count; ++k, row += row_bytes, sums += stride) {
      accumulate product[static_cast<std::size_t>(ChunksPerThread)];
      accumulate square[static_cast<std::size_t>(ChunksPerThread)];
#pragma unroll
      for (int i = 0; i < ChunksPerThread; ++i) {
        product[i] = 0;
        square[i] = 0;
        if (!Joined && !columns_.valid(i)) { continue; }
        const values s = load(row, i);
#pragma unroll
        for (int c = 0; c < chunk_width; ++c) {
          product[i] = thread::multiply_add(columns_.weight(i)[c], s[c], product[i]);
          square[i] = thread::multiply_add(s[c], s[c], square[i]);
        }
      }
      if constexpr (Joined) {
#pragma unroll
        for (int i = 1; i < ChunksPerThread; ++i) {
          product[0] += product[i];
          square[0] += square[i];
        }
        store_group_sums(product[0], square[0], sums + (columns_.chunk(0) >> p_.tree.span_shift),
                         rows_per_batch * stride, p_.tree.group_shift, true);
      }
      else {
#pragma unroll
        for (int i = 0; i < ChunksPerThread; ++i) {
          store_group_sums(product[i], square[i], sums + (columns_.chunk(i) >> p_.tree.span_shift),
                           rows_per_batch * stride, p_.tree.group_shift, columns_.valid(i));
        }
      }
    }
  }

  //! Eq. 5 begins with the null source, or with nothing.
  __device__ __forceinline__ void start_mix(const accumulate* null_logits)
  {
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      values mix{};
      if (p_.null_source && columns_.valid(i) &&
          null_logits[columns_.head(i)] != -thread::infinity<accumulate>) {
        mix = null_row<T>{p_}.load(0, 0, columns_.column(i), chunk_width);
      }
      columns_.set_mix(i, mix);
    }
  }

  __device__ __forceinline__ void mix(const char* stage, int row_bytes, int count,
                                      const step* steps)
  {
    const char* row = stage + columns_.chunk(0) * 16;
#pragma unroll 1
    for (int k = 0; k < count; ++k, row += row_bytes, steps += p_.tree.num_heads) {
      step next = steps[columns_.head(0)];
#pragma unroll
      for (int i = 0; i < ChunksPerThread; ++i) {
        if (!Joined && !columns_.valid(i)) { continue; }
        if (!Joined && i > 0) { next = steps[columns_.head(i)]; }
        const values s = load(row, i);
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
      }
    }
  }

private:
  [[nodiscard]] static __device__ __forceinline__ values load(const char* row, int i)
  {
    return thread::widen_all<accumulate>(
        thread::load_vector(reinterpret_cast<const T*>(row + i * 512)));
  }

  const route_parameters<T>& p_;
  columns_type& columns_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
