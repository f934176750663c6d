// SPDX-License-Identifier: Apache-2.0
//! The forward as a stream of batches: warps that own columns sum one batch and mix the one before it, while other warps turn
//! sums into softmax steps.
#pragma once

#include <mhar/block/detail/chunk_sums.cuh>
#include <mhar/block/detail/named_barrier.cuh>
#include <mhar/block/detail/route_finish.cuh>
#include <mhar/block/detail/route_heads.cuh>
#include <mhar/block/detail/row_stages.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Shared memory of route_kernel in front of its stages: their barriers, and what even and odd batches leave behind.
template <class Accumulate>
[[nodiscard]] MHAR_HOST_DEVICE constexpr std::size_t stream_storage_bytes(
    const thread::width_tree& tree) noexcept
{
  return stages_offset(8 * max_stages +
                       2 * route_storage<Accumulate>::size(tree) * sizeof(Accumulate));
}

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

  //! Span sums of <w, s> and s^2 for the rows of a batch, two rows at a time as long as there are two.
  __device__ __forceinline__ void sum(const char* stage, int row_bytes, int count, accumulate* sums,
                                      int stride) const
  {
    const char* row = stage + columns_.chunk(0) * 16;
    int k = 0;
#pragma unroll 1
    for (; k + 1 < count; k += 2, row += 2 * row_bytes, sums += 2 * stride) {
      thread::vector<accumulate, 4> of_lane{};
#pragma unroll
      for (int i = 0; i < ChunksPerThread; ++i) {
        const bool valid = Joined || columns_.valid(i);
        thread::vector<accumulate, 4> of_chunk{};
        if (valid) {
          add_products(of_chunk[0], of_chunk[1], columns_.weight(i), load(row, i));
          add_products(of_chunk[2], of_chunk[3], columns_.weight(i), load(row + row_bytes, i));
        }
        add_chunk<Joined>(of_lane, of_chunk, i);
        if (!Joined || i == ChunksPerThread - 1) {
          store_group_sums(of_lane, sums_of(sums, i), stride, rows_per_batch * stride,
                           group_shift(), valid);
        }
      }
    }
    if (k == count) { return; }
    thread::vector<accumulate, 2> of_lane{};
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      const bool valid = Joined || columns_.valid(i);
      thread::vector<accumulate, 2> of_chunk{};
      if (valid) { add_products(of_chunk[0], of_chunk[1], columns_.weight(i), load(row, i)); }
      add_chunk<Joined>(of_lane, of_chunk, i);
      if (!Joined || i == ChunksPerThread - 1) {
        store_group_sums(of_lane[0], of_lane[1], sums_of(sums, i), rows_per_batch * stride,
                         group_shift(), valid);
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
    // Few chunks need more rows under way at a time.
#pragma unroll(ChunksPerThread == 1 ? 4 : 1)
    for (int k = 0; k < count; ++k, row += row_bytes, steps += p_.tree.num_heads) {
      step next = steps[columns_.head(0)];
      // A factor of 1 changes nothing, and it is what most rows after the first few have.
      if (Joined && next.rescale != accumulate{1}) {
#pragma unroll
        for (int i = 0; i < ChunksPerThread; ++i) { rescale(i, next.rescale); }
      }
#pragma unroll
      for (int i = 0; i < ChunksPerThread; ++i) {
        if (!Joined && !columns_.valid(i)) { continue; }
        if (!Joined && i > 0) { next = steps[columns_.head(i)]; }
        if (!Joined && next.rescale != accumulate{1}) { rescale(i, next.rescale); }
        const values s = load(row, i);
        values mix = columns_.mix(i);
#pragma unroll
        for (int c = 0; c < chunk_width; ++c) {
          mix[c] = thread::multiply_add(next.weight, s[c], mix[c]);
        }
        columns_.set_mix(i, mix);
      }
    }
  }

private:
  //! A span of several chunks per lane has whole warps for groups.
  [[nodiscard]] __device__ __forceinline__ int group_shift() const
  {
    return Joined && ChunksPerThread > 1 ? 5 : p_.tree.group_shift;
  }
  [[nodiscard]] __device__ __forceinline__ accumulate* sums_of(accumulate* sums, int i) const
  {
    return sums + (columns_.chunk(i) >> p_.tree.span_shift);
  }

  __device__ __forceinline__ void rescale(int i, accumulate factor)
  {
    // Volatile, so that the branch around it stays one: the multiplications are rarely needed.
    asm volatile("");
    values mix = columns_.mix(i);
#pragma unroll
    for (int c = 0; c < chunk_width; ++c) { mix[c] *= factor; }
    columns_.set_mix(i, mix);
  }
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
