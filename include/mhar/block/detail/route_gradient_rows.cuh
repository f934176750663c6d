// SPDX-License-Identifier: Apache-2.0
//! Backward of a call: the rows of one position, their sums over the width and their gradients.
#pragma once

#include <mhar/block/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

namespace detail {

//! sum += factor * value. A factor of 0 adds nothing: what it keeps out may be infinite.
template <class Accumulate, int Width>
__device__ __forceinline__ void add_product(Accumulate factor,
                                            const thread::vector<Accumulate, Width>& value,
                                            thread::vector<Accumulate, Width>& sum)
{
  if (factor != 0) {
#pragma unroll
    for (int i = 0; i < Width; ++i) { sum[i] = fma(factor, value[i], sum[i]); }
  }
}

//! What a thread knows of a row where something is not finite, its columns in memory.
template <class T, int Chunks>
struct non_finite_row
{
  using accumulate = accumulate_t<T>;
  static constexpr int width = thread::chunk_width<T>;
  static constexpr auto size = static_cast<std::size_t>(Chunks * width);

  accumulate weight[size];
  accumulate gradient[size];
  accumulate weight_sum[size];
  int column;  //!< the first
  int step;    //!< columns from one chunk to the next
  element type;
  bool adds;
  std::int64_t start;  //!< of the position in `to`

  //! ds of the row, and its share of dw: a factor of 0 leaves its term out.
  __device__ __noinline__ void differentiate(const T* from, const unsigned char* old,
                                             unsigned char* to,
                                             thread::vector<accumulate, 2> factors,
                                             accumulate slope)
  {
#pragma unroll 1
    for (int i = 0; i < Chunks * width; ++i) {
      const int at = column + i / width * step + i % width;
      const auto s = widen<accumulate>(from[at]);
      if (factors[1] != 0) { weight_sum[i] = fma(factors[1], s, weight_sum[i]); }
      if (to == nullptr) { continue; }
      accumulate result = slope != 0 ? slope * s : accumulate{0};
      if (factors[1] != 0) { result = fma(factors[1], weight[i], result); }
      if (factors[0] != 0) { result = fma(factors[0], gradient[i], result); }
      if (adds) { result += mhar::load<accumulate>(old, type, at); }
      mhar::store(to, type, start + at, result);
    }
  }
};

}  // namespace detail

//! The thread's part of the logit of a rounded key.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::key_product(
    const values& key, const values& weight, std::int64_t column, int count) const -> accumulate
{
  accumulate sum = 0;
  if (call_.rounding == key_rounding::storage) {
#pragma unroll
    for (int i = 0; i < width; ++i) { sum = fma(weight[i], key[i], sum); }
    return sum;
  }
  const values query = load(call_.query, column, count, 0);
  const values norm = load(call_.norm_weight, column, count, 1);
#pragma unroll
  for (int i = 0; i < width; ++i) {
    sum = fma(call_.scale * query[i], widen<accumulate>(round_to<T>(key[i] * norm[i])), sum);
  }
  return sum;
}

//! Rounded keys need the inverse rms before the products are formed.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::find_inverses(
    int batch, std::int64_t position)
{
  const int first = batch * call_.rows_per_stage;
  for (int slot = 0; slot < rows_in(batch); ++slot) {
    for (int round = 0; call_.inverse_rms == nullptr && round < num_rounds(); ++round) {
      accumulate sums[1] = {0};
      for_columns(round, [&](int chunk, std::int64_t column, int count) {
        const values s = row_values(slot, first + slot, position, chunk, column, count);
#pragma unroll
        for (int i = 0; i < width; ++i) { sums[0] = fma(s[i], s[i], sums[0]); }
      });
      store_groups(sums, round, parts_of(slot) + 2 * call_.map.num_groups, 0);
    }
  }
  __syncthreads();
  for (int slot = static_cast<int>(threadIdx.x) / 32; slot < rows_in(batch);
       slot += call_.map.num_threads / 32) {
    const accumulate inverse = inverse_of(slot, first + slot, position);
    if (threadIdx.x % 32 == 0) { arena_[call_.arena.inverses + slot] = inverse; }
  }
  __syncthreads();
}

//! Sums by groups of <w, s>, <do, s>, <s, s> and, with rounded keys, of the logit.
template <class T, int Chunks, int Capacity>
template <int Rows>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::sum_rows(int first_slot,
                                                                              int first_row,
                                                                              std::int64_t position)
{
  const int num_groups = call_.map.num_groups;
  for (int round = 0; round < num_rounds(); ++round) {
    // Value 4k + i is sum i of row k, as in the arena; the fourth of a row is that of rounded keys.
    thread::vector<accumulate, 4 * Rows> sums{};
    for_columns(round, [&](int chunk, std::int64_t column, int count) {
      const values weight = weight_.get(chunk);
      const values gradient = gradient_.get(chunk);
#pragma unroll
      for (int k = 0; k < Rows; ++k) {
        const values s = row_values(first_slot + k, first_row + k, position, chunk, column, count);
#pragma unroll
        for (int i = 0; i < width; ++i) {
          sums[4 * k] = fma(weight[i], s[i], sums[4 * k]);
          // Columns past the row's end hold 0 in s, but anything in do.
          if (has_ring || i < count) { sums[4 * k + 1] = fma(gradient[i], s[i], sums[4 * k + 1]); }
          sums[4 * k + 2] = fma(s[i], s[i], sums[4 * k + 2]);
        }
        if constexpr (!has_ring) {
          if (rounds_keys()) {
            const accumulate inverse = arena_[call_.arena.inverses + first_slot + k];
            values key;
#pragma unroll
            for (int i = 0; i < width; ++i) {
              key[i] = widen<accumulate>(round_to<T>(inverse * s[i]));
            }
            sums[4 * k + 3] += key_product(key, weight, column, count);
          }
        }
      }
    });
    store_row_sums<Rows>(sums, round, parts_of(first_slot));
  }
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::sum_batch(
    int batch, std::int64_t position)
{
  if constexpr (!has_ring) {
    if (rounds_keys()) { find_inverses(batch, position); }
  }
  const int first = batch * call_.rows_per_stage;
  const int rows = rows_in(batch);
  int slot = 0;
  for (; slot + 4 <= rows && (!has_ring || slot + 5 != rows); slot += 4) {
    sum_rows<4>(slot, first + slot, position);
  }
  if constexpr (has_ring) {
    // One row alone takes as long as two.
    if (slot + 5 == rows) {
      sum_rows<5>(slot, first + slot, position);
      return;
    }
  }
  if (slot + 2 <= rows) {
    sum_rows<2>(slot, first + slot, position);
    slot += 2;
  }
  if (slot < rows) { sum_rows<1>(slot, first + slot, position); }
}

//! With a ring: the gradients of a batch's rows, elements of the rows' type or the arithmetic's,
//! and the rows' share of dw. In accumulate mode the old gradients came with the rows.
template <class T, int Chunks, int Capacity>
template <class Element>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::differentiate_held(
    int first, int rows, std::int64_t position)
{
  const auto& gradients = call_.row_gradients;
  const int slot_step = call_.slot_bytes;
  const unsigned char* slot = slot_memory(0);
  const bool adds = call_.old_gradient_bytes > 0;
  const int to_old = call_.slot_bytes - call_.old_gradient_bytes;
  const accumulate* factor = arena_ + call_.arena.factors + 2 * head_;
  const accumulate* slope = arena_ + call_.arena.slopes;
  const std::int64_t offset = position * gradients.position_stride + column_;
  unsigned char* strided = gradients.base + first * gradients.row_bytes;
  for (int k = 0; k < rows; ++k) {
    const auto factors = thread::load_vector<accumulate, 2>(factor);
    const accumulate of_row = *slope;
    unsigned char* const row = gradients.listed ? gradients.list[first + k] : strided;
    const bool wanted = row != nullptr;
    Element* const to = reinterpret_cast<Element*>(row) + offset;
    const T* const from = reinterpret_cast<const T*>(slot) + column_;
    const Element* const old = reinterpret_cast<const Element*>(slot + to_old) + column_;
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      const values s = thread::widen_all<accumulate>(thread::load_vector(from + chunk * step_));
      values sum = weight_sum_.get(chunk);
#pragma unroll
      for (int i = 0; i < width; ++i) { sum[i] = fma(factors[1], s[i], sum[i]); }
      weight_sum_.set(chunk, sum);
      if (wanted) {
        const values weight = weight_.get(chunk);
        const values gradient = gradient_.get(chunk);
        values result;
#pragma unroll
        for (int i = 0; i < width; ++i) {
          result[i] = fma(factors[0], gradient[i], fma(factors[1], weight[i], of_row * s[i]));
        }
        if (adds) {
          const values before = held_values(old + chunk * step_);
#pragma unroll
          for (int i = 0; i < width; ++i) { result[i] += before[i]; }
        }
        detail::store_accesses(to + chunk * step_, result);
      }
    }
    slot += slot_step;
    factor += 2 * call_.extent.num_heads;
    ++slope;
    strided += gradients.row_bytes;
  }
}

//! The same where something is not finite. Out of line and an element at a time, with columns in
//! local memory: rare code that leaves the registers of the other loops alone.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::differentiate_non_finite(
    int first, int rows, std::int64_t position)
{
  const auto& gradients = call_.row_gradients;
  detail::non_finite_row<T, Chunks> row;
  row.column = column_;
  row.step = step_;
  row.type = gradients.type;
  row.adds = call_.old_gradient_bytes > 0;
  row.start = position * gradients.position_stride;
#pragma unroll
  for (int i = 0; i < Chunks * width; ++i) {
    row.weight[i] = weight_.get(i / width)[i % width];
    row.gradient[i] = gradient_.get(i / width)[i % width];
    row.weight_sum[i] = weight_sum_.get(i / width)[i % width];
  }
#pragma unroll 1
  for (int k = 0; k < rows; ++k) {
    const accumulate* const factors =
        arena_ + call_.arena.factors + 2 * (k * call_.extent.num_heads + head_);
    row.differentiate(reinterpret_cast<const T*>(slot_memory(k)),
                      slot_memory(k + 1) - call_.old_gradient_bytes, gradients.row(first + k),
                      thread::load_vector<accumulate, 2>(factors), arena_[call_.arena.slopes + k]);
  }
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
    values sum;
#pragma unroll
    for (int i = 0; i < width; ++i) { sum[i] = row.weight_sum[chunk * width + i]; }
    weight_sum_.set(chunk, sum);
  }
}

//! Without a ring: ds of one row, and its share of dw.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::differentiate_row(
    int slot, int row, std::int64_t position)
{
  const gradient_arena& arena = call_.arena;
  const auto& gradients = call_.row_gradients;
  unsigned char* const to = gradients.row(row);
  const accumulate slope = arena_[arena.slopes + slot];
  const std::int64_t start = position * gradients.position_stride;
  const bool rounds = rounds_keys();
  const accumulate inverse = rounds ? arena_[arena.inverses + slot] : accumulate{1};
  for (int round = 0; round < num_rounds(); ++round) {
    const int head = head_of(round);
    if (head >= call_.extent.num_heads) { continue; }
    const auto factors = thread::load_vector<accumulate, 2>(
        arena_ + arena.factors + (slot * call_.extent.num_heads + head) * 2);
    const accumulate of_key =
        rounds ? arena_[arena.key_factors + slot * call_.extent.num_heads + head] : factors[1];
    for_columns(round, [&](int chunk, std::int64_t column, int count) {
      const values s = row_values(slot, row, position, chunk, column, count);
      if (wants_weight()) {
        values key = s;
        if (rounds) {
#pragma unroll
          for (int i = 0; i < width; ++i) {
            key[i] = widen<accumulate>(round_to<T>(inverse * s[i]));
          }
        }
        values sum = weight_sum_.get(chunk);
        detail::add_product(of_key, key, sum);
        weight_sum_.set(chunk, sum);
      }
      if (to == nullptr) { return; }
      values result{};
      detail::add_product(slope, s, result);
      detail::add_product(factors[1], weight_.get(chunk), result);
      detail::add_product(factors[0], gradient_.get(chunk), result);
      if (gradients.mode == update::accumulate) {
        detail::add_columns(to, gradients.type, start + column, count, result);
      }
      else {
        detail::store_columns(to, gradients.type, start + column, count, result);
      }
    });
  }
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::differentiate_slots(
    int first, int rows, std::int64_t position)
{
  if (call_.row_gradients.type == element_of<T>::value) {
    differentiate_held<T>(first, rows, position);
  }
  else {
    differentiate_held<accumulate>(first, rows, position);
  }
}

//! Every thread: the gradients of a batch in its columns (eq. 15 and 16).
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::differentiate_batch(
    int batch, bool finite, std::int64_t position)
{
  const int first = batch * call_.rows_per_stage;
  const int rows = rows_in(batch);
  if constexpr (has_ring) {
    if (head_ < call_.extent.num_heads) {
      if (finite) { differentiate_slots(first, rows, position); }
      else {
        differentiate_non_finite(first, rows, position);
      }
    }
    copy_step();
    close_step();
  }
  else {
    for (int slot = 0; slot < rows; ++slot) { differentiate_row(slot, first + slot, position); }
  }
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::differentiate(
    std::int64_t position)
{
  const bool position_counts = call_.num_null > 0 || call_.partials.gate != nullptr;
  for (int batch = 0; batch < num_batches_; ++batch) {
    if (!keeps_rows()) { wait_for_rows(); }
    sum_batch(batch, position);
    __syncthreads();
    const bool finite = finish_rows(batch, position);
    // The last warp has no row to finish, or the fewest.
    if (batch == 0 && position_counts &&
        static_cast<int>(threadIdx.x) >= call_.map.num_threads - 32) {
      finish_position(position);
    }
    const bool all_finite = __syncthreads_and(finite) != 0;
    if (batch == 0 && call_.partials.null_source != nullptr) {
      for (int round = 0; round < num_rounds(); ++round) {
        for_columns(round, [&](int chunk, std::int64_t, int) {
          const accumulate factor = head_memory(call_.arena.null_heads, 2)[head_of(round)];
          values sum = null_sum_.get(chunk);
          detail::add_product(factor, gradient_.get(chunk), sum);
          null_sum_.set(chunk, sum);
        });
      }
    }
    differentiate_batch(batch, all_finite, position);
  }
}

}  // namespace block
MHAR_NAMESPACE_END
