// SPDX-License-Identifier: Apache-2.0
//! The forward of one position by one block (eq. 1 to 5): sums over the width, softmax steps of the heads, mix.
#pragma once

#include <mhar/block/detail/group_sums.cuh>
#include <mhar/block/detail/route_columns.cuh>
#include <mhar/block/detail/route_rows.cuh>
#include <mhar/block/detail/route_storage.cuh>
#include <mhar/thread/inverse_rms.hpp>
#include <mhar/thread/multiply_add.hpp>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Columns holds what each thread knows of its columns. All threads of the block call every member function.
template <class T, class Columns>
class route_core
{
public:
  using accumulate = accumulate_t<T>;
  using storage = route_storage<accumulate>;
  using step = thread::softmax_step<accumulate>;
  using state = thread::softmax_state<accumulate>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ route_core(const route_parameters<T>& p, const storage& shared,
                                        Columns& columns)
      : p_{p},
        shared_{shared},
        columns_{columns},
        lane_{static_cast<int>(threadIdx.x) % 32},
        warp_{static_cast<int>(threadIdx.x) / 32},
        num_warps_{static_cast<int>(blockDim.x) / 32}
  {
  }

  //! Once per block: the folded query, and the null source's logits. Up to four barriers.
  __device__ __forceinline__ void begin()
  {
    columns_.load_weights(p_);
    if (!p_.null_source) { return; }
    const null_row<T> null{p_};
    sum_keys(null, 1, false);
    __syncthreads();
    if (p_.rounding != key_rounding::none) {
      find_inverse(null, 1);
      sum_keys(null, 1, true);
      __syncthreads();
    }
    const accumulate bias =
        p_.bias ? load<accumulate>(p_.bias.data, p_.bias.type, 0) : accumulate{0};
    accumulate inverse[rows_per_batch];
    inverse_rms(null, 1, inverse);
    for_each_head([&](int, int head, bool writes) {
      const accumulate found = logit(inverse[0], dot(head, 0), bias);
      if (writes) { shared_.null_logits[head] = found; }
    });
    __syncthreads();
  }

  //! Rows [first, first + count) of a position, count <= rows_per_batch. The last batch, which may be empty, completes the
  //! softmax. Two barriers, four with rounded keys.
  template <class Rows>
  __device__ __forceinline__ void take(const Rows& rows, std::int64_t position, int first,
                                       int count)
  {
    if constexpr (Rows::keeps_changes) { update_rows(rows, position, first, count); }
    if (count > 0) { sum_chunks(rows, count); }
    __syncthreads();
    if (count > 0 && p_.rounding != key_rounding::none) {
      find_inverse(rows, count);
      sum_keys(rows, count, true);
      __syncthreads();
    }
    step_heads(rows, position, first, count);
    __syncthreads();
    if (first == 0) { start_mix(); }
    if (count > 0) { mix_rows(rows, position, first, count); }
  }

private:
  template <class Rows>
  __device__ __forceinline__ void update_rows(const Rows& rows, std::int64_t position, int first,
                                              int count)
  {
    const int k = p_.updated_row - first;
    if (p_.updated_row < 0 || k < 0 || k >= count) { return; }
    if constexpr (cuda::std::is_same_v<Rows, staged_rows<T>>) {
#pragma unroll
      for (int i = 0; i < columns_.size(); ++i) {
        if (!columns_.valid(i)) { continue; }
        const int chunk = columns_.chunk(i);
        const int column = columns_.column(i);
        const auto sum =
            add_delta(p_, rows.load(k, chunk, column, chunk_width), position, column, chunk_width);
        rows.replace(k, chunk, sum);
        store_updated(p_, sum, position, column, chunk_width);
      }
    }
  }

  //! Group sums of <w, s> and s^2 for the rows of a batch.
  template <class Rows>
  __device__ __forceinline__ void sum_chunks(const Rows& rows, int count)
  {
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      const bool valid = columns_.valid(i);
      thread::vector<accumulate, 2 * rows_per_batch> sums{};
      if (valid) {
        const values w = columns_.weight(i);
#pragma unroll
        for (int k = 0; k < rows_per_batch; ++k) {
          if (k >= count) { break; }
          const values s = thread::widen_all<accumulate>(
              rows.load(k, columns_.chunk(i), columns_.column(i), columns_.count(i)));
#pragma unroll
          for (int c = 0; c < chunk_width; ++c) {
            sums[2 * k] = thread::multiply_add(w[c], s[c], sums[2 * k]);
            sums[2 * k + 1] = thread::multiply_add(s[c], s[c], sums[2 * k + 1]);
          }
        }
      }
      store_group_sums(sums, shared_.sums, shared_.stride, columns_.chunk(i), p_.tree.group, valid);
    }
  }

  //! The same row by row, for what is rare: the null source, and keys that are rounded once their r is known.
  template <class Rows>
  __device__ __forceinline__ void sum_keys(const Rows& rows, int count, bool rounded)
  {
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      const accumulate r = rounded ? shared_.inverse[k] : accumulate{1};
#pragma unroll
      for (int i = 0; i < columns_.size(); ++i) {
        const bool valid = columns_.valid(i);
        accumulate product = 0;
        accumulate square = 0;
        if (valid) {
          const values w = columns_.weight(i);
          const values s = thread::widen_all<accumulate>(
              rows.load(k, columns_.chunk(i), columns_.column(i), columns_.count(i)));
          values g;
          const bool twice = rounded && p_.rounding == key_rounding::storage_twice;
          if (twice) {
            g = load_columns<accumulate, chunk_width>(p_.norm_weight.data, p_.norm_weight.type,
                                                      columns_.column(i), columns_.count(i),
                                                      accumulate{1});
          }
#pragma unroll
          for (int c = 0; c < chunk_width; ++c) {
            accumulate key = rounded ? widen<accumulate>(round_to<T>(s[c] * r)) : s[c];
            if (twice) { key = widen<accumulate>(round_to<T>(key * g[c])); }
            product = thread::multiply_add(w[c], key, product);
            square = thread::multiply_add(s[c], s[c], square);
          }
        }
        accumulate* const sums = shared_.sums + 2 * k * shared_.stride;
        store_group_sum(product, sums, columns_.chunk(i), p_.tree.group, valid);
        store_group_sum(square, sums + shared_.stride, columns_.chunk(i), p_.tree.group, valid);
      }
    }
  }

  //! r of the batch's rows for every thread, for rounding. One barrier.
  template <class Rows>
  __device__ __forceinline__ void find_inverse(const Rows& rows, int count)
  {
    if (warp_ == 0) {
      accumulate inverse[rows_per_batch];
      inverse_rms(rows, count, inverse);
#pragma unroll
      for (int k = 0; k < rows_per_batch; ++k) {
        if (k < count && lane_ == 0) { shared_.inverse[k] = inverse[k]; }
      }
    }
    __syncthreads();
  }

  //! Eq. 1 for the rows of the batch, by a whole warp; every lane gets them.
  template <class Rows>
  __device__ __forceinline__ void inverse_rms(const Rows& rows, int count,
                                              accumulate (&inverse)[rows_per_batch]) const
  {
    accumulate squares[rows_per_batch] = {};
    bool overflow = false;
#pragma unroll
    for (int k = 0; k < rows_per_batch; ++k) {
      if (k >= count) { break; }
      squares[k] =
          sum_groups(shared_.sums + (2 * k + 1) * shared_.stride, p_.tree.num_groups, lane_, 32);
      overflow = overflow || thread::overflowed(squares[k]);
    }
#pragma unroll
    for (int k = 0; k < rows_per_batch; ++k) {
      inverse[k] = thread::inverse_rms(squares[k], p_.tree.width, p_.eps);
    }
    if (!overflow) { return; }
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      const accumulate sum = sum_scaled_squares(rows, k);
#pragma unroll
      for (int j = 0; j < rows_per_batch; ++j) {
        if (j == k && thread::overflowed(squares[j])) {
          inverse[j] = thread::scaled_inverse_rms(sum, p_.tree.width);
        }
      }
    }
  }
  template <class Rows>
  [[nodiscard]] __device__ __forceinline__ accumulate sum_scaled_squares(const Rows& rows,
                                                                         int k) const
  {
    accumulate sum = 0;
#pragma unroll 1
    for (int chunk = lane_; chunk < p_.tree.num_chunks; chunk += 32) {
      const int count = p_.tree.columns(chunk, chunk_width);
      const values s = thread::widen_all<accumulate>(
          rows.load(k, chunk, p_.tree.first_column(chunk, chunk_width), count));
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) {
        const accumulate scaled =
            c < count ? s[c] * thread::overflow_scale<accumulate> : accumulate{0};
        sum = thread::multiply_add(scaled, scaled, sum);
      }
    }
    return butterfly_sum(sum, 32);
  }

  //! Calls visitor(round, head, writes) for the heads that this warp serves; `lanes_per_head` lanes serve a head together and one
  //! of them writes. Lanes whose head does not exist take part in the sums and do not write.
  template <class Visitor>
  __device__ __forceinline__ void for_each_head(Visitor visitor)
  {
    const int lanes = p_.tree.lanes_per_head;
    const int heads_at_once = 32 / lanes;
#pragma unroll 1
    for (int round = warp_; round * heads_at_once < p_.tree.num_heads; round += num_warps_) {
      const int head = round * heads_at_once + lane_ / lanes;
      const bool exists = head < p_.tree.num_heads;
      visitor(round, exists ? head : 0, exists && lane_ % lanes == 0);
    }
  }
  //! <w, key> of row k of the batch over a head, by the lanes that serve it.
  [[nodiscard]] __device__ __forceinline__ accumulate dot(int head, int k) const
  {
    const int lanes = p_.tree.lanes_per_head;
    return sum_groups(shared_.sums + 2 * k * shared_.stride + head * p_.tree.groups_per_head,
                      p_.tree.groups_per_head, lane_ % lanes, lanes);
  }
  //! Eq. 2 and 3. A rounded key has r inside.
  [[nodiscard]] __device__ __forceinline__ accumulate logit(accumulate inverse, accumulate product,
                                                            accumulate bias) const
  {
    return p_.rounding == key_rounding::none ? thread::multiply_add(inverse, product, bias)
                                             : product + bias;
  }

  template <class Rows>
  __device__ __forceinline__ void step_heads(const Rows& rows, std::int64_t position, int first,
                                             int count)
  {
    const int heads_at_once = 32 / p_.tree.lanes_per_head;
    if (warp_ * heads_at_once >= p_.tree.num_heads) { return; }
    const bool last = first + count == p_.num_rows;
    const int has_null = p_.null_source ? 1 : 0;
    accumulate inverse[rows_per_batch];
    inverse_rms(rows, count, inverse);
    if (p_.inverse_rms != nullptr && warp_ == 0 && lane_ == 0) {
#pragma unroll
      for (int k = 0; k < rows_per_batch; ++k) {
        if (k < count) { p_.inverse_rms[(first + k) * p_.num_positions + position] = inverse[k]; }
      }
    }
    for_each_head([&](int, int head, bool writes) {
      state now;
      if (first > 0) { now = shared_.states[head]; }
      else if (has_null != 0) {
        static_cast<void>(now.advance(shared_.null_logits[head]));
      }
      accumulate logits[rows_per_batch];
#pragma unroll
      for (int k = 0; k < rows_per_batch; ++k) {
        if (k >= count) { break; }
        const accumulate bias =
            p_.bias ? load<accumulate>(p_.bias.data, p_.bias.type, first + k + has_null)
                    : accumulate{0};
        logits[k] = logit(inverse[k], dot(head, k), bias);
      }
#pragma unroll
      for (int k = 0; k < rows_per_batch; ++k) {
        if (k >= count) { break; }
        const step next = now.advance(logits[k]);
        if (writes) { shared_.steps[k * p_.tree.num_heads + head] = next; }
      }
      if (!writes) { return; }
      shared_.states[head] = now;
      const std::int64_t entry = position * p_.tree.num_heads + head;
      if (p_.weights != nullptr) { store_logits(entry, head, first, count, logits); }
      if (!last) { return; }
      shared_.normalizers[head] = now.normalizer();
      if (p_.lse != nullptr) { p_.lse[entry] = now.log_sum_exp(); }
      if (p_.weights != nullptr) { finish_weights(entry, now.log_sum_exp()); }
    });
  }

  //! The weights' memory holds the logits until the last of them is known; one thread writes and reads a head's.
  __device__ __forceinline__ void store_logits(std::int64_t entry, int head, int first, int count,
                                               const accumulate (&logits)[rows_per_batch])
  {
    const int has_null = p_.null_source ? 1 : 0;
    accumulate* const of_head = p_.weights + entry * (p_.num_rows + has_null);
    if (first == 0 && has_null != 0) { of_head[0] = shared_.null_logits[head]; }
#pragma unroll
    for (int k = 0; k < rows_per_batch; ++k) {
      if (k >= count) { break; }
      of_head[has_null + first + k] = logits[k];
    }
  }
  __device__ __forceinline__ void finish_weights(std::int64_t entry, accumulate lse)
  {
    const int num_sources = p_.num_rows + (p_.null_source ? 1 : 0);
    accumulate* const of_head = p_.weights + entry * num_sources;
    for (int n = 0; n < num_sources; ++n) {
      // lse is -inf when every logit is; the weights are then 0, not exp(-inf - -inf).
      of_head[n] =
          lse == -thread::infinity<accumulate> ? accumulate{0} : thread::exp_of(of_head[n] - lse);
    }
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
  __device__ __forceinline__ void mix_rows(const Rows& rows, std::int64_t position, int first,
                                           int count)
  {
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      if (!columns_.valid(i)) { continue; }
      const step* const steps = shared_.steps + columns_.head(i);
      values mix = columns_.mix(i);
#pragma unroll
      for (int k = 0; k < rows_per_batch; ++k) {
        if (k >= count) { break; }
        const auto row = rows.load(k, columns_.chunk(i), columns_.column(i), columns_.count(i));
        const values s = thread::widen_all<accumulate>(row);
        const step next = steps[k * p_.tree.num_heads];
        // A factor of 1 changes nothing, and it is what most rows after the first few have.
        if (next.rescale != accumulate{1}) {
#pragma unroll
          for (int c = 0; c < chunk_width; ++c) { mix[c] *= next.rescale; }
        }
#pragma unroll
        for (int c = 0; c < chunk_width; ++c) {
          mix[c] = thread::multiply_add(next.weight, s[c], mix[c]);
        }
        if constexpr (!Rows::keeps_changes) {
          if (first + k == p_.updated_row) {
            store_updated(p_, row, position, columns_.column(i), columns_.count(i));
          }
        }
      }
      columns_.set_mix(i, mix);
    }
  }

  const route_parameters<T>& p_;
  const storage& shared_;
  Columns& columns_;
  int lane_;
  int warp_;
  int num_warps_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
