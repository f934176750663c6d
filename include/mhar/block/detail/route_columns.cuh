// SPDX-License-Identifier: Apache-2.0
//! What a thread keeps of its columns, the folded query and the mix: in registers where they fit, else in memory.
#pragma once

#include <mhar/block/detail/columns.cuh>
#include <mhar/block/detail/group_sums.cuh>
#include <mhar/block/route_parameters.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Columns of a parameter of any type. Out of line: it is for what happens once per block.
template <class Accumulate, int Count>
[[nodiscard]] __device__ __noinline__ thread::vector<Accumulate, Count> load_parameter(
    const const_array& from, int column, int count, Accumulate absent)
{
  return load_columns<Accumulate, Count>(from.data, from.type, column, count, absent);
}

//! Columns of a parameter that is read at every position: float at once, other types and alignments by a call.
template <class Accumulate, int Count>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, Count> load_hot_parameter(
    const const_array& from, int column, int count, Accumulate absent)
{
  const float* const floats = static_cast<const float*>(from.data) + column;
  if (from && from.type == element::float32 && count == Count &&
      is_accessible<float, Count>(floats)) {
    return load_accesses<Accumulate, Count>(floats);
  }
  return load_parameter<Accumulate, Count>(from, column, count, absent);
}

//! Columns of a parameter that is absent or aligned floats.
template <class Accumulate, int Count>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, Count> load_plain_parameter(
    const const_array& from, int column, Accumulate absent)
{
  if (from) {
    return load_accesses<Accumulate, Count>(static_cast<const float*>(from.data) + column);
  }
  thread::vector<Accumulate, Count> result;
#pragma unroll
  for (int c = 0; c < Count; ++c) { result[c] = absent; }
  return result;
}

//! A chunk, element `at` on, of an activation of T or float that is aligned to 16 bytes.
template <class T>
[[nodiscard]] __device__ __forceinline__ thread::vector<accumulate_t<T>, thread::chunk_width<T>>
load_regular(const const_matrix& from, std::int64_t at)
{
  constexpr int width = thread::chunk_width<T>;
  if (from.type == element_of<T>::value) {
    return load_accesses<accumulate_t<T>, width>(static_cast<const T*>(from.data) + at);
  }
  return load_accesses<accumulate_t<T>, width>(static_cast<const float*>(from.data) + at);
}
template <class T>
__device__ __forceinline__ void store_regular(
    const matrix& to, std::int64_t at,
    const thread::vector<accumulate_t<T>, thread::chunk_width<T>>& value)
{
  if (to.type == element_of<T>::value) { store_accesses(static_cast<T*>(to.data) + at, value); }
  else {
    store_accesses(static_cast<float*>(to.data) + at, value);
  }
}

//! The folded query of a chunk: scale*q*g, or scale*q where g is applied to the rounded key.
template <class T, class Accumulate = accumulate_t<T>>
[[nodiscard]] __device__ __forceinline__ thread::vector<Accumulate, thread::chunk_width<T>>
fold_chunk(const route_parameters<T>& p, int column, int count)
{
  constexpr int width = thread::chunk_width<T>;
  auto weight = load_parameter<Accumulate, width>(p.query, column, count, Accumulate{0});
  const bool folds = p.norm_weight && p.rounding != key_rounding::storage_twice;
  const auto g = load_parameter<Accumulate, width>(folds ? p.norm_weight : const_array{}, column,
                                                   count, Accumulate{1});
#pragma unroll
  for (int i = 0; i < width; ++i) { weight[i] = weight[i] * p.scale * g[i]; }
  return weight;
}

//! Registers: a warp owns 32 * ChunksPerThread consecutive chunks, lane l the l-th of each 32. Every chunk is full, and partial,
//! o, y and mix are T or float, aligned to 16 bytes. Keys are not rounded.
template <class T, int ChunksPerThread>
class register_columns
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ explicit register_columns(const route_parameters<T>& p)
      : register_columns{p, warp_of_thread()}
  {
  }
  //! For warp `warp` of those that own the columns between them.
  __device__ __forceinline__ register_columns(const route_parameters<T>& p, int warp)
      : first_{warp * 32 * ChunksPerThread + static_cast<int>(threadIdx.x) % 32}
  {
    valid_ = (p.tree.num_chunks - first_ + 31) / 32;
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      heads_[i] = valid(i) ? p.tree.head_of(chunk(i)) : 0;
    }
  }
  //! For a block that owns a part of the columns: the thread's first chunk, or none.
  __device__ __forceinline__ register_columns(const route_parameters<T>& p, int chunk_of_thread,
                                              bool exists)
      : first_{exists ? chunk_of_thread : 0},
        valid_{exists ? (p.tree.num_chunks - chunk_of_thread + 31) / 32 : 0}
  {
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      heads_[i] = valid(i) ? p.tree.head_of(chunk(i)) : 0;
    }
  }
  __device__ __forceinline__ void load_weights(const route_parameters<T>& p)
  {
    const bool folds = static_cast<bool>(p.norm_weight);
    if (!is_plain(p.query) || (folds && !is_plain(p.norm_weight))) {
#pragma unroll
      for (int i = 0; i < ChunksPerThread; ++i) {
        weights_[i] = fold_chunk(p, valid(i) ? column(i) : 0, valid(i) ? chunk_width : 0);
      }
      return;
    }
    // All loads at once: a block that serves a single position waits for them.
    const float* const q = static_cast<const float*>(p.query.data);
    const float* const g = static_cast<const float*>(p.norm_weight.data);
    values factors[static_cast<std::size_t>(ChunksPerThread)];
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      const int at = valid(i) ? column(i) : 0;
      weights_[i] = load_accesses<accumulate, chunk_width>(q + at);
      if (folds) { factors[i] = load_accesses<accumulate, chunk_width>(g + at); }
    }
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) {
        weights_[i][c] = weights_[i][c] * p.scale * (folds ? factors[i][c] : accumulate{1});
      }
    }
  }

  //! Makes the compiler forget what it has found from the place of the columns: it would keep an address for every output, and
  //! lack registers for the mix.
  __device__ __forceinline__ void forget_addresses() { asm volatile("" : "+r"(first_)); }

  [[nodiscard]] static constexpr __device__ int size() { return ChunksPerThread; }
  [[nodiscard]] __device__ __forceinline__ int chunk(int i) const { return first_ + 32 * i; }
  [[nodiscard]] __device__ __forceinline__ bool valid(int i) const { return i < valid_; }
  [[nodiscard]] __device__ __forceinline__ int column(int i) const
  {
    return chunk(i) * chunk_width;
  }
  [[nodiscard]] static constexpr __device__ int count(int) { return chunk_width; }
  [[nodiscard]] __device__ __forceinline__ int head(int i) const { return heads_[i]; }
  [[nodiscard]] __device__ __forceinline__ const values& weight(int i) const { return weights_[i]; }
  [[nodiscard]] __device__ __forceinline__ const values& mix(int i) const { return mixes_[i]; }
  __device__ __forceinline__ void set_mix(int i, const values& value) { mixes_[i] = value; }

  //! Chunk i of a parameter.
  [[nodiscard]] __device__ __forceinline__ values load(const const_array& from, int i,
                                                       accumulate absent) const
  {
    return load_hot_parameter<accumulate, chunk_width>(from, column(i), chunk_width, absent);
  }
  //! Chunk i of a position of an activation.
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
  //! Float, and aligned to 16 bytes, as all of its chunks then are.
  [[nodiscard]] static __device__ __forceinline__ bool is_plain(const const_array& from)
  {
    return from.type == element::float32 && thread::is_aligned(from.data, 16);
  }

  int first_;
  int valid_;
  int heads_[static_cast<std::size_t>(ChunksPerThread)];
  values weights_[static_cast<std::size_t>(ChunksPerThread)];
  values mixes_[static_cast<std::size_t>(ChunksPerThread)];
};

//! Register columns of calls whose norm weight of o and null source are float and aligned to 16 bytes. Without a call of a
//! function in between, what a position needs stays in registers. Joined: every chunk exists, and a thread's are of one head.
template <class T, int ChunksPerThread, bool Joined>
class plain_columns : public register_columns<T, ChunksPerThread>
{
public:
  using base = register_columns<T, ChunksPerThread>;
  using base::base;
  using base::load;
  using typename base::accumulate;
  using typename base::values;

  [[nodiscard]] __device__ __forceinline__ bool valid(int i) const
  {
    return Joined || base::valid(i);
  }
  [[nodiscard]] __device__ __forceinline__ int head(int i) const
  {
    return base::head(Joined ? 0 : i);
  }

  [[nodiscard]] __device__ __forceinline__ values load(const const_array& from, int i,
                                                       accumulate absent) const
  {
    return load_plain_parameter<accumulate, base::chunk_width>(from, base::column(i), absent);
  }
};

//! Memory, for any width, head width, type and alignment: the block's warps take 32*depth chunks in turn. `memory` holds the
//! folded query and the mix, [d] each.
template <class T>
class memory_columns
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ memory_columns(const route_parameters<T>& p, accumulate* memory)
      : p_{p}, weights_{memory}, mixes_{memory + p.tree.width}
  {
  }
  //! A thread writes and reads its own chunks only.
  __device__ __forceinline__ void load_weights(const route_parameters<T>&)
  {
    for (int i = 0; i < size(); ++i) {
      if (valid(i)) {
        thread::store_elements(weights_ + column(i), fold_chunk(p_, column(i), count(i)), count(i));
      }
    }
  }

  //! Rounded up, so that every lane takes part in the sums of its warp.
  [[nodiscard]] __device__ __forceinline__ int size() const
  {
    const int at_once = static_cast<int>(blockDim.x) * p_.tree.depth;
    return (p_.tree.num_chunks + at_once - 1) / at_once * p_.tree.depth;
  }
  [[nodiscard]] __device__ __forceinline__ int chunk(int i) const
  {
    const int depth = p_.tree.depth;
    const int warps = static_cast<int>(blockDim.x) / 32;
    const int span = i / depth * warps + static_cast<int>(threadIdx.x) / 32;
    return (span * depth + i % depth) * 32 + static_cast<int>(threadIdx.x) % 32;
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
    return thread::load_elements<accumulate, chunk_width>(weights_ + column(i), count(i));
  }
  [[nodiscard]] __device__ __forceinline__ values mix(int i) const
  {
    return thread::load_elements<accumulate, chunk_width>(mixes_ + column(i), count(i));
  }
  __device__ __forceinline__ void set_mix(int i, const values& value)
  {
    thread::store_elements(mixes_ + column(i), value, count(i));
  }

  [[nodiscard]] __device__ __forceinline__ values load(const const_array& from, int i,
                                                       accumulate absent) const
  {
    return load_hot_parameter<accumulate, chunk_width>(from, column(i), count(i), absent);
  }
  [[nodiscard]] __device__ __forceinline__ values load(const const_matrix& from,
                                                       std::int64_t position, int i) const
  {
    const std::int64_t at = position * from.position_stride + column(i);
    return load_columns<accumulate, chunk_width>(from.data, from.type, at, count(i));
  }
  __device__ __forceinline__ void store(const matrix& to, std::int64_t position, int i,
                                        const values& value) const
  {
    store_columns(to.data, to.type, position * to.position_stride + column(i), count(i), value);
  }

private:
  const route_parameters<T>& p_;
  accumulate* weights_;
  accumulate* mixes_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
