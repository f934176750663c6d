// SPDX-License-Identifier: Apache-2.0
//! What a thread keeps of its columns, the folded query and the mix: in registers where they fit, else in memory.
#pragma once

#include <mhar/block/detail/columns.cuh>
#include <mhar/block/route_parameters.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! The folded query of a chunk: scale*q*g, or scale*q where g is applied to the rounded key.
template <class T, class Accumulate = accumulate_t<T>>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, thread::chunk_width<T>>
fold_chunk(const route_parameters<T>& p, int column, int count)
{
  constexpr int width = thread::chunk_width<T>;
  auto weight = load_columns<Accumulate, width>(p.query.data, p.query.type, column, count);
#pragma unroll
  for (int i = 0; i < width; ++i) { weight[i] *= p.scale; }
  if (p.norm_weight && p.rounding != key_rounding::storage_twice) {
    const auto g =
        load_columns<Accumulate, width>(p.norm_weight.data, p.norm_weight.type, column, count);
#pragma unroll
    for (int i = 0; i < width; ++i) { weight[i] *= g[i]; }
  }
  return weight;
}

//! Registers: a warp owns 32 * ChunksPerThread consecutive chunks, lane l the l-th of each 32. Every chunk is full.
template <class T, int ChunksPerThread>
class register_columns
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ explicit register_columns(const route_parameters<T>& p)
      : first_{static_cast<int>(threadIdx.x) / 32 * 32 * ChunksPerThread +
               static_cast<int>(threadIdx.x) % 32},
        num_chunks_{p.tree.num_chunks}
  {
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      heads_[i] = valid(i) ? p.tree.head_of(chunk(i)) : 0;
    }
  }
  __device__ __forceinline__ void load_weights(const route_parameters<T>& p)
  {
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      weights_[i] = fold_chunk(p, valid(i) ? column(i) : 0, valid(i) ? chunk_width : 0);
    }
  }

  [[nodiscard]] static constexpr __device__ int size() { return ChunksPerThread; }
  [[nodiscard]] __device__ __forceinline__ int chunk(int i) const { return first_ + 32 * i; }
  [[nodiscard]] __device__ __forceinline__ bool valid(int i) const
  {
    return chunk(i) < num_chunks_;
  }
  [[nodiscard]] __device__ __forceinline__ int column(int i) const
  {
    return chunk(i) * chunk_width;
  }
  [[nodiscard]] static constexpr __device__ int count(int) { return chunk_width; }
  [[nodiscard]] __device__ __forceinline__ int head(int i) const { return heads_[i]; }
  [[nodiscard]] __device__ __forceinline__ const values& weight(int i) const { return weights_[i]; }
  [[nodiscard]] __device__ __forceinline__ const values& mix(int i) const { return mixes_[i]; }
  __device__ __forceinline__ void set_mix(int i, const values& value) { mixes_[i] = value; }

private:
  int first_;
  int num_chunks_;
  int heads_[static_cast<std::size_t>(ChunksPerThread)];
  values weights_[static_cast<std::size_t>(ChunksPerThread)];
  values mixes_[static_cast<std::size_t>(ChunksPerThread)];
};

//! Memory, for any width and head width: the block's threads take the chunks in turn. The folded query is computed again at each
//! use, the mix lies in `memory`, [d].
template <class T>
class memory_columns
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ memory_columns(const route_parameters<T>& p, accumulate* memory)
      : p_{p}, memory_{memory}
  {
  }
  __device__ __forceinline__ void load_weights(const route_parameters<T>&) {}

  [[nodiscard]] __device__ __forceinline__ int size() const
  {
    const int threads = static_cast<int>(blockDim.x);
    return (p_.tree.num_chunks + threads - 1) / threads;
  }
  [[nodiscard]] __device__ __forceinline__ int chunk(int i) const
  {
    return i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }
  [[nodiscard]] __device__ __forceinline__ bool valid(int i) const
  {
    return chunk(i) < p_.tree.num_chunks;
  }
  [[nodiscard]] __device__ __forceinline__ int column(int i) const
  {
    return p_.tree.first_column(chunk(i), chunk_width);
  }
  [[nodiscard]] __device__ __forceinline__ int count(int i) const
  {
    return p_.tree.columns(chunk(i), chunk_width);
  }
  [[nodiscard]] __device__ __forceinline__ int head(int i) const
  {
    return p_.tree.head_of(chunk(i));
  }
  [[nodiscard]] __device__ __forceinline__ values weight(int i) const
  {
    return fold_chunk(p_, column(i), count(i));
  }
  [[nodiscard]] __device__ __forceinline__ values mix(int i) const
  {
    return thread::load_elements<accumulate, chunk_width>(memory_ + column(i), count(i));
  }
  __device__ __forceinline__ void set_mix(int i, const values& value)
  {
    thread::store_elements(memory_ + column(i), value, count(i));
  }

private:
  const route_parameters<T>& p_;
  accumulate* memory_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
