// SPDX-License-Identifier: Apache-2.0
//! Sums over the width of the sources of one position, by the warps of a cluster's blocks: loads first, then arithmetic, then
//! the way to every block. What is rare is out of line, so that the rest is one run of instructions.
#pragma once

#include <mhar/block/detail/cluster_storage.cuh>
#include <mhar/block/detail/route_keys.cuh>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Halves the values that a lane holds by a sum with the lane `offset` away: the upper lane goes on with the upper half.
template <int Half, int Count, class Accumulate>
__device__ __forceinline__ void halve_sums(thread::vector<Accumulate, Count>& values, int& first,
                                           int offset)
{
  const bool upper = (static_cast<int>(threadIdx.x) & offset) != 0;
#pragma unroll
  for (int i = 0; i < Half; ++i) {
    const Accumulate kept = upper ? values[i + Half] : values[i];
    const Accumulate given = upper ? values[i] : values[i + Half];
    values[i] = kept + __shfl_xor_sync(full_warp, given, offset);
  }
  first += upper ? Half : 0;
}

//! Sums `Count` values, a power of two up to 8, over groups of `group` lanes, as butterfly_sums does. The lanes of a group share
//! the sums: each ends with `left` of them, at least two, values first, first + 1, ..., as do `sharers` neighbours.
template <int Count, class Accumulate>
struct shared_sums
{
  int first = 0;
  int left = Count;
  int sharers;

  template <int Half>
  __device__ __forceinline__ void halve(thread::vector<Accumulate, Count>& values, int& offset)
  {
    if constexpr (Half > 1) {
      // The group is the same in all lanes.
      if (offset > 0) {
        halve_sums<Half>(values, first, offset);
        left = Half;
        sharers >>= 1;
        offset >>= 1;
        halve<Half / 2>(values, offset);
      }
    }
  }
  __device__ __forceinline__ shared_sums(thread::vector<Accumulate, Count>& values, int group)
      : sharers{group}
  {
    int offset = group >> 1;
    halve<Count / 2>(values, offset);
#pragma unroll
    for (int round = 0; round < 5; ++round) {
      if (offset == 0) { continue; }
      values[0] += __shfl_xor_sync(full_warp, values[0], offset);
      values[1] += __shfl_xor_sync(full_warp, values[1], offset);
      offset >>= 1;
    }
  }
};

//! Sends what `share` says of the products and squares of `count` sources from `first_source` on to all blocks, each to its
//! lanes' span.
template <class T, int Count>
__device__ __forceinline__ void send_sums(const cluster_storage<T>& shared,
                                          const shared_sums<Count, accumulate_t<T>>& share,
                                          const thread::vector<accumulate_t<T>, Count>& sums,
                                          int first_source, int count, int span)
{
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int blocks = cluster::size();
#pragma unroll
  for (int i = 0; i < Count; i += 2) {
    const int source = (share.first + i) / 2;
    if (i >= share.left || source >= count) { continue; }
    accumulate_t<T>* const place =
        shared.sums + 2 * ((first_source + source) * shared.spans + span);
#pragma unroll 1
    for (int block = lane & (share.sharers - 1); block < blocks; block += share.sharers) {
      shared.mailboxes[0].send_pair(place, block, sums[i], sums[i + 1]);
    }
  }
}

//! Widens a row's elements from the words they were loaded as: vectors of T would be taken apart and put together again.
template <class T, int Words, int Width = Words * 4 / static_cast<int>(sizeof(T))>
[[nodiscard]] __device__ __forceinline__ thread::vector<accumulate_t<T>, Width> widen_words(
    const thread::vector<std::uint32_t, Words>& words)
{
  if constexpr (cuda::std::is_same_v<T, bfloat16>) {
    thread::vector<float, Width> result;
#pragma unroll
    for (int i = 0; i < Words; ++i) {
      result[2 * i] = __uint_as_float(words[i] << 16);
      result[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
    return result;
  }
  else {
    return thread::widen_all<accumulate_t<T>>(
        mhar::detail::bit_cast<thread::vector<T, Width>>(words));
  }
}

template <class Accumulate, int Width>
__device__ __forceinline__ void multiply_key(key_sums<Accumulate>& sums,
                                             const thread::vector<Accumulate, Width>& w,
                                             const thread::vector<Accumulate, Width>& s)
{
#pragma unroll
  for (int c = 0; c < Width; ++c) {
    sums.product = thread::multiply_add(w[c], s[c], sums.product);
    sums.square = thread::multiply_add(s[c], s[c], sums.square);
  }
}

// Arguments by value, here and below: what a call takes the address of is kept in memory, not in registers.

//! The sums of the null source over a unit.
template <class T>
__device__ __noinline__ void sum_null(const route_parameters<T>& p, const cluster_storage<T> shared,
                                      int chunk)
{
  using accumulate = accumulate_t<T>;
  constexpr int width = thread::chunk_width<T>;
  const int span = chunk >> p.tree.span_shift;
  const bool valid = chunk < p.tree.num_chunks;
  key_sums<accumulate> of_lane;
#pragma unroll 1
  for (int place = 0; place < p.tree.depth && valid; ++place, chunk += 32) {
    key_sums<accumulate> of_chunk;
    multiply_key(of_chunk, fold_chunk(p, chunk * width, width),
                 null_row<T>{p}.load(0, 0, chunk * width, width));
    of_lane.product = place == 0 ? of_chunk.product : of_lane.product + of_chunk.product;
    of_lane.square = place == 0 ? of_chunk.square : of_lane.square + of_chunk.square;
  }
  thread::vector<accumulate, 2> sums{{of_lane.product, of_lane.square}};
  const shared_sums<2, accumulate> share{sums, p.tree.group};
  if (valid) { send_sums<T>(shared, share, sums, 0, 1, span); }
}

//! The lane's chunks of a row in shared memory become round(row + delta). `chunk` is the first of them.
template <class T, int Depth>
__device__ __noinline__ void update_chunks(const route_parameters<T>& p, char* row,
                                           std::int64_t position, int chunk)
{
#pragma unroll 1
  for (int place = 0; place < Depth; ++place) {
    T* const elements = reinterpret_cast<T*>(row + place * 512);
    const register_columns<T, 1> column{p, chunk + place * 32, true};
    thread::store_vector(elements,
                         add_delta(p, column, position, 0, thread::load_vector(elements)));
  }
}

//! fold_chunk, out of line: parameters of other types than float, and unaligned ones.
template <class T>
[[nodiscard]] __device__ __noinline__ thread::vector<accumulate_t<T>, thread::chunk_width<T>>
folded_chunk(const route_parameters<T>& p, int column)
{
  return fold_chunk(p, column, thread::chunk_width<T>);
}

//! A unit's folded query and `Rows` of its rows, in the registers of a warp.
template <class T, int Depth, int Rows>
class cluster_rows_held
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;
  using words = thread::vector<std::uint32_t>;

  __device__ __forceinline__ explicit cluster_rows_held(const route_parameters<T>& p)
      : p_{p},
        folds_{static_cast<bool>(p.norm_weight)},
        plain_{is_plain(p.query) && (!folds_ || is_plain(p.norm_weight))}
  {
  }
  //! Rows first_row on; `chunk` is the lane's first. Memory is not read yet.
  template <class Pointers>
  __device__ __forceinline__ void aim(const Pointers& rows, std::int64_t position, int chunk,
                                      int first_row)
  {
    chunk_ = chunk;
    first_row_ = first_row;
    valid_ = chunk < p_.tree.num_chunks;
    const int left = p_.num_rows - first_row;
    count_ = left < Rows ? left : Rows;
#pragma unroll
    for (int k = 0; k < Rows; ++k) {
      const T* const row = rows.at(k < count_ ? first_row + k : first_row, position);
      from_[k] = row + (valid_ ? chunk : 0) * chunk_width;
      // More of them would leave too few registers.
      if constexpr (Rows <= 4) { from_[k] = kept_pointer(from_[k]); }
    }
    const int column = (valid_ ? chunk : 0) * chunk_width;
    query_ = kept_pointer(static_cast<const float*>(p_.query.data) + column);
    norm_weight_ = kept_pointer(static_cast<const float*>(p_.norm_weight.data) + column);
  }
  //! Starts the loads of rows first_row + `First` on.
  template <int First, int Count>
  __device__ __forceinline__ void load_rows()
  {
#pragma unroll
    for (int k = First; k < First + Count; ++k) {
#pragma unroll
      for (int place = 0; place < Depth; ++place) {
        raw_[k][place] = {};
        if (k < count_ && valid_) {
          raw_[k][place] = thread::load_vector(
              reinterpret_cast<const std::uint32_t*>(from_[k] + place * 32 * chunk_width));
        }
      }
    }
  }
  __device__ __forceinline__ void load_parameters()
  {
    if (!plain_) {
      const int column = (valid_ ? chunk_ : 0) * chunk_width;
#pragma unroll
      for (int place = 0; place < Depth; ++place) {
        weights_[place] = folded_chunk(p_, column + place * 32 * chunk_width);
      }
      return;
    }
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
      weights_[place] = load_accesses<accumulate, chunk_width>(query_ + place * 32 * chunk_width);
      if (folds_) {
        factors_[place] =
            load_accesses<accumulate, chunk_width>(norm_weight_ + place * 32 * chunk_width);
      }
    }
  }
  __device__ __forceinline__ void fold()
  {
    if (!plain_) { return; }
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) { weights_[place][c] *= p_.scale; }
    }
    if (!folds_) { return; }
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) { weights_[place][c] *= factors_[place][c]; }
    }
  }
  //! Reads the rows again from where they lie `row_bytes` apart.
  __device__ __forceinline__ void reload(const char* from, int row_bytes)
  {
#pragma unroll
    for (int k = 0; k < Rows; ++k) {
#pragma unroll
      for (int place = 0; place < Depth; ++place) {
        if (k < count_ && valid_) {
          raw_[k][place] = thread::load_vector(
              reinterpret_cast<const std::uint32_t*>(from + k * row_bytes + place * 512));
        }
      }
    }
  }
  //! The sums of row first_row + k over the lane's chunks, which are added in order.
  [[nodiscard]] __device__ __forceinline__ key_sums<accumulate> sum(int k) const
  {
    key_sums<accumulate> of_lane;
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
      key_sums<accumulate> of_chunk;
      multiply_key(of_chunk, weights_[place], row(k, place));
      of_lane.product = place == 0 ? of_chunk.product : of_lane.product + of_chunk.product;
      of_lane.square = place == 0 ? of_chunk.square : of_lane.square + of_chunk.square;
    }
    return of_lane;
  }
  //! Sums of `Count` rows, as sum_and_send collects them.
  template <int Count>
  using sums_of = thread::vector<accumulate, Count == 1   ? 2
                                             : Count == 2 ? 4
                                                          : 8>;

  //! Sums `Count` rows from row first_row on and sends what exists of them.
  template <int Count>
  __device__ __forceinline__ void sum_and_send(const cluster_storage<T>& shared) const
  {
    sums_of<Count> sums{};
#pragma unroll
    for (int k = 0; k < Count; ++k) {
      const key_sums<accumulate> of_row = sum(k);
      sums[2 * k] = of_row.product;
      sums[2 * k + 1] = of_row.square;
    }
    send<Count>(shared, sums, 0);
  }
  //! Adds up what lanes have of the sums of rows first_row + `first` on and sends what exists of them.
  template <int Count>
  __device__ __forceinline__ void send(const cluster_storage<T>& shared, sums_of<Count>& sums,
                                       int first) const
  {
    // Deep units have whole warps for groups. A group that the compiler knows spares the branches.
    if (Depth > 1 || p_.tree.group == 32) { send_groups<Count>(shared, sums, first, 32); }
    else if (p_.tree.group == 16) {
      send_groups<Count>(shared, sums, first, 16);
    }
    else {
      send_groups<Count>(shared, sums, first, p_.tree.group);
    }
  }

  [[nodiscard]] __device__ __forceinline__ bool valid() const { return valid_; }
  [[nodiscard]] __device__ __forceinline__ int first_row() const { return first_row_; }
  [[nodiscard]] __device__ __forceinline__ int count() const { return count_; }
  [[nodiscard]] __device__ __forceinline__ const words& raw(int k, int place) const
  {
    return raw_[k][place];
  }
  [[nodiscard]] __device__ __forceinline__ values row(int k, int place) const
  {
    return widen_words<T>(raw_[k][place]);
  }

private:
  template <int Count>
  __device__ __forceinline__ void send_groups(const cluster_storage<T>& shared,
                                              sums_of<Count>& sums, int first, int group) const
  {
    constexpr int num_values = sizeof(sums) / sizeof(accumulate);
    const shared_sums<num_values, accumulate> share{sums, group};
    if (!valid_) { return; }
    send_sums<T>(shared, share, sums, first_row_ + first + (p_.null_source ? 1 : 0),
                 count_ - first < Count ? count_ - first : Count, chunk_ >> p_.tree.span_shift);
  }
  //! An address that is made here, not where it is used.
  template <class Element>
  [[nodiscard]] static __device__ __forceinline__ const Element* kept_pointer(const Element* from)
  {
    asm volatile("" : "+l"(from));
    return from;
  }
  [[nodiscard]] static __device__ __forceinline__ bool is_plain(const const_array& from)
  {
    return from.type == element::float32 && thread::is_aligned(from.data, 16);
  }

  const route_parameters<T>& p_;
  bool folds_;
  bool plain_;
  int chunk_ = 0;
  int first_row_ = 0;
  int count_ = 0;
  bool valid_ = false;
  const T* from_[static_cast<std::size_t>(Rows)];
  const float* query_ = nullptr;
  const float* norm_weight_ = nullptr;
  words raw_[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(Depth)];
  values weights_[static_cast<std::size_t>(Depth)];
  values factors_[static_cast<std::size_t>(Depth)];
};

}  // namespace block::detail
MHAR_NAMESPACE_END
