// SPDX-License-Identifier: Apache-2.0
//! The forward by a warp or two per position: no warp waits for a barrier of the block.
#pragma once

#include <mhar/block/detail/chunk_ending.cuh>
#include <mhar/block/detail/chunk_sums.cuh>
#include <mhar/block/detail/cluster_heads.cuh>
#include <mhar/block/detail/named_barrier.cuh>
#include <mhar/block/detail/quick_math.cuh>
#include <mhar/block/detail/route_finish.cuh>
#include <mhar/block/detail/route_heads.cuh>
#include <mhar/block/detail/row_stages.cuh>
#include <mhar/block/detail/warp_columns.cuh>
#include <mhar/block/detail/warp_ending.cuh>
#include <mhar/block/detail/warp_null_source.cuh>
#include <mhar/block/detail/warp_parameters.cuh>
#include <mhar/block/detail/warp_rows.cuh>
#include <mhar/block/detail/warp_storage.cuh>
#include <mhar/thread/softmax_state.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Chunks and Spans of a lane, Rows that are summed together, 1, 2 or 4, Split warps of a position, 1 or 2.
template <class T, int Chunks, int Spans, int Rows, int Split, int Capacity>
class route_warp
{
public:
  using accumulate = accumulate_t<T>;
  using columns_type = warp_columns<T, Chunks, Spans, Split>;
  using storage = warp_storage<T, Chunks, Spans, Rows, Split>;
  //! Whether no call has a norm: with a mix this large it would lack registers.
  static constexpr bool ends_without_norm = Split > 1;
  using state = thread::softmax_state<accumulate>;
  using step = thread::softmax_step<accumulate>;
  static constexpr int chunk_width = thread::chunk_width<T>;

  __device__ __forceinline__ route_warp(const route_parameters<T>& p,
                                        const row_pointers<T, Capacity>& rows_of_call,
                                        const warp_ring& ring, char* memory)
      : p_{p},
        rows_{rows_of_call},
        ring_{ring},
        memory_{memory},
        warp_{warp_of_thread()},
        lane_{static_cast<int>(threadIdx.x) & 31},
        group_{warp_ / Split},
        part_{warp_ % Split},
        columns_{p.tree, part_},
        row_shift_{columns_.lanes_shift() - Rows / 2},
        row_of_lane_{(lane_ >> row_shift_) & (Rows - 1)},
        parameters_{reinterpret_cast<float*>(memory) + part_ * Chunks * 32 * chunk_width,
                    reinterpret_cast<float*>(memory + storage::query_bytes) +
                        part_ * Chunks * 32 * chunk_width},
        null_logits_{reinterpret_cast<accumulate*>(memory + storage::null_logits_offset(ring))},
        gate_{reinterpret_cast<accumulate*>(memory + storage::gate_offset(ring))},
        steps_{reinterpret_cast<step*>(memory + storage::steps_offset(ring) +
                                       warp_ * storage::steps_bytes)},
        sums_{reinterpret_cast<accumulate*>(memory + storage::sums_offset(ring) +
                                            group_ * storage::sums_bytes)},
        streams_partial_{p.partial && p.partial.type == element_of<T>::value &&
                         (ends_without_norm || p.norm != output_norm::rms)},
        stream_{{p, rows_of_call, streams_partial_},
                ring,
                warp_,
                reinterpret_cast<std::uint64_t*>(memory + storage::barriers_offset(ring)) +
                    warp_ * ring.slots,
                memory + storage::ring_offset(ring) + warp_ * ring.slots * ring.slot_bytes,
                reinterpret_cast<int*>(memory + storage::gate_offset(ring)) + 1}
  {
  }

  __device__ __forceinline__ void operator()()
  {
    start();
    for (std::int64_t position = stream_.begin_position(); position < p_.num_positions;
         position = stream_.begin_position()) {
      take(position);
    }
  }

private:
  //! Where a lane has registers for the sums of all its spans.
  static constexpr bool sums_spans_together = Rows < 4;
  //! Asks for a row when another has been mixed, not for a batch.
  static constexpr bool fetches_each = Chunks > 5 || Split > 1;
  //! A lane's sums of spans are in registers of the lanes that the tree deals the spans to.
  static constexpr bool has_all_spans = Spans == 1 && Split == 1;
  //! Those of half of the heads are, and what the tree adds to a lane's own first has the other warp.
  static constexpr bool has_half_of_spans = Spans == 1 && Split == 2;
  //! Chunks of parameters that a warp asks for before anything else: with as many warps as there should be, all that it folds.
  static constexpr int ahead = Chunks <= 8 ? 1 : 4;
  //! The null source is summed from its copy in shared memory. With a mix this large code for that would cost registers elsewhere.
  static constexpr bool sums_null_copy = Chunks <= 8;

  //! By all warps. Parameters are asked for before the rows, which would hold them up, and made ready while those come.
  __device__ __forceinline__ void start()
  {
    const int groups = ring_.warps / Split;
    auto asked = parameters_.ask(p_, columns_, group_, groups);
    if (threadIdx.x == 0) {
      stream_.init_dealt();
      *gate_ = p_.gate ? load_scalar<accumulate>(p_.gate.data, p_.gate.type, 0) : accumulate{1};
    }
    // Of two sums of spans four strides apart: the places of all warps are more.
    route_storage<accumulate> of_null{};
    of_null.stride = route_storage<accumulate>::stride_of(p_.tree);
    of_null.sums = reinterpret_cast<accumulate*>(memory_ + storage::sums_offset(ring_));
    of_null.null_logits = null_logits_;
    const null_row<T> null_source{p_};
    if (p_.null_source && !sums_null_copy) {
      sum_keys(p_, of_null, null_source, 1, key_rounding::none, warp_, ring_.warps);
    }

    stream_.init_barriers();
    stream_.fill();
    parameters_.keep(p_, columns_, asked, group_, groups);
    if (p_.null_source) {
      __syncthreads();
      if constexpr (sums_null_copy) {
        if (group_ == 0) { sum_null_source<Chunks, Spans>(columns_, parameters_, of_null); }
        __syncthreads();
      }
      if (warp_ == 0) { route_heads<T>{p_, 0, 1}.find_null_logits(of_null, null_source); }
      __syncthreads();
    }
    for (int i = lane_; i < storage::sums_bytes / 4; i += 32) { sums_[i] = 0; }
    __syncthreads();
  }

  //! The lane's chunk i of what begins at `slot`.
  [[nodiscard]] __device__ __forceinline__ typename columns_type::values chunk_of(const char* slot,
                                                                                  int i) const
  {
    const char* const place = slot + (columns_.chunk(i) * 16 - part_ * ring_.slot_bytes);
    return thread::widen_all<accumulate>(thread::load_vector(reinterpret_cast<const T*>(place)));
  }

  __device__ __forceinline__ void take(std::int64_t position)
  {
    if (!streams_partial_) { prefetch_position(p_.partial, p_.tree.width, position); }
    begin_position();
    int first = 0;
    do {
      const int left = p_.num_rows - first;
      const int count = left < Rows ? left : Rows;
      stream_.wait(row_of_lane_ < count ? row_of_lane_ : count - 1);
      find_steps(position, first, count);
      mix(count);
      if constexpr (!fetches_each) { stream_.replace(0, count); }
      stream_.leave(count);
      first += count;
    } while (first < p_.num_rows);
    end_position(position);
  }

  __device__ __forceinline__ void begin_position()
  {
    state_ = state{};
#pragma unroll
    for (int i = 0; i < Chunks; ++i) { columns_.set_mix(i, {}); }
    if (!p_.null_source) { return; }
    const accumulate logit = null_logits_[columns_.head(0)];
    static_cast<void>(state_.advance(logit));
    if (logit != -thread::infinity<accumulate>) {
#pragma unroll
      for (int i = 0; i < Chunks; ++i) { columns_.set_mix(i, parameters_.null_source(i)); }
    }
  }

  //! Sums of the rows of a batch over chunk i: place s is row s ^ row_of_lane_, product and square.
  using sums_type = thread::vector<accumulate, 2 * Rows>;
  __device__ __forceinline__ sums_type
  sum_chunk(const char* const (&from)[static_cast<std::size_t>(Rows)], int i) const
  {
    sums_type sums{};
    const thread::vector<accumulate, chunk_width> w = parameters_.query(i);
#pragma unroll
    for (int s = 0; s < Rows; ++s) {
      add_products(sums[2 * s], sums[2 * s + 1], w, chunk_of(from[s], i));
    }
    return sums;
  }
  //! Steps of `count` rows from row `first` of the position, and what the state is after them.
  __device__ __forceinline__ void find_steps(std::int64_t position, int first, int count)
  {
    const char* from[static_cast<std::size_t>(Rows)];
#pragma unroll
    for (int s = 0; s < Rows; ++s) {
      const int row = s ^ row_of_lane_;
      from[s] = stream_.at(row < count ? row : count - 1);
    }
    // After the exchanges a lane has the sums of its own row.
    thread::vector<accumulate, Spans> products;
    thread::vector<accumulate, Spans> squares;
    accumulate* const sums = sums_ + odd_ * (Rows * storage::stride);
    accumulate* const of_row = sums + row_of_lane_ * storage::stride + columns_.first_span();
#pragma unroll
    for (int span = 0; span < Spans; ++span) {
      sums_type of_span = add_in_lane<Chunks / Spans>(
          [&](int i) { return sum_chunk(from, span * (Chunks / Spans) + i); });
      // Each exchange halves the rows whose sums a lane carries.
#pragma unroll
      for (int left = Rows; left > 1; left /= 2) {
#pragma unroll
        for (int v = 0; v < left; ++v) {
          of_span[v] += __shfl_xor_sync(full_warp, of_span[v + left], (left / 2) << row_shift_);
        }
      }
      products[span] = of_span[0];
      squares[span] = of_span[1];
      if constexpr (!sums_spans_together) {
        add_lanes(products, squares, span, span + 1);
        if constexpr (!has_all_spans) { of_row[span] = squares[span]; }
      }
    }
    if constexpr (sums_spans_together) {
      add_lanes(products, squares, 0, Spans);
      if constexpr (!has_all_spans) {
#pragma unroll
        for (int span = 0; span < Spans; ++span) { of_row[span] = squares[span]; }
      }
    }
    accumulate square;
    if constexpr (has_all_spans) { square = add_heads(squares[0], columns_.lanes()); }
    else {
      if constexpr (Split > 1) {
        // What is written for the batch after the next comes after this barrier of the next.
        odd_ ^= 1;
        numbered_barrier{group_ + 1, 32 * Split}.sync();
      }
      else {
        __syncwarp();
      }
      if constexpr (has_half_of_spans) {
        const int other = columns_.head(0) ^ (p_.tree.num_heads / 2);
        square =
            add_heads(squares[0] + sums[row_of_lane_ * storage::stride + other], columns_.lanes());
      }
      else {
        // Of the batch's row `lane`.
        square = sum_spans_of_warp<storage::spans>(sums + (lane_ & (Rows - 1)) * storage::stride);
        square = __shfl_sync(full_warp, square, row_of_lane_);
      }
    }
    accumulate inverse = quick_inverse_rms(square, p_.tree.width, p_.eps);
    if (__any_sync(full_warp, thread::overflowed(square))) {
      inverse = find_scaled(square, inverse, position, first, count);
    }
    const bool exists = row_of_lane_ < count;
    if (p_.inverse_rms != nullptr && part_ == 0 && exists &&
        (lane_ & ~((Rows - 1) << row_shift_)) == 0) {
      p_.inverse_rms[(first + row_of_lane_) * p_.num_positions + position] = inverse;
    }
    const accumulate nothing = -thread::infinity<accumulate>;
    const accumulate bias =
        p_.bias && exists ? load_scalar<accumulate>(p_.bias.data, p_.bias.type,
                                                    first + row_of_lane_ + (p_.null_source ? 1 : 0))
                          : accumulate{0};
    const accumulate logit =
        exists ? thread::multiply_add(inverse, sum_spans_of_head(products), bias) : nothing;

    // The largest logit up to this row, by a scan over the lanes of the head. A NaN is never larger.
    accumulate maximum = logit > state_.maximum ? logit : state_.maximum;
#pragma unroll
    for (int distance = 1; distance < Rows; distance *= 2) {
      const accumulate other =
          __shfl_up_sync(full_warp, maximum, static_cast<unsigned>(distance) << row_shift_);
      maximum = row_of_lane_ >= distance && other > maximum ? other : maximum;
    }
    state before;
    before.maximum = state_.maximum;
    if constexpr (Rows > 1) {
      const accumulate other = __shfl_up_sync(full_warp, maximum, 1u << row_shift_);
      if (row_of_lane_ > 0) { before.maximum = other; }
    }
    step_ = before.advance(logit);
    if constexpr (Rows > 1) {
      steps_[row_of_lane_ * storage::heads + columns_.head_of_warp()] = step_;
      maximum = __shfl_sync(full_warp, maximum, lane_ | ((Rows - 1) << row_shift_));
      __syncwarp();
    }
    state_.maximum = maximum;
  }
  //! The rest of a butterfly over the lanes of a row, of spans [first, last).
  __device__ __forceinline__ void add_lanes(thread::vector<accumulate, Spans>& products,
                                            thread::vector<accumulate, Spans>& squares, int first,
                                            int last) const
  {
    const auto exchange = [&](int distance) {
#pragma unroll
      for (int span = first; span < last; ++span) {
        products[span] += __shfl_xor_sync(full_warp, products[span], distance);
        squares[span] += __shfl_xor_sync(full_warp, squares[span], distance);
      }
    };
    if constexpr (Chunks / Spans == 16) {
#pragma unroll
      for (int distance = 2 / Rows; distance > 0; distance /= 2) { exchange(distance); }
    }
    else {
#pragma unroll 1
      for (int distance = (1 << row_shift_) >> 1; distance > 0; distance >>= 1) {
        exchange(distance);
      }
    }
  }
  //! r of the lane's row, also where squares overflowed.
  [[nodiscard]] __device__ __forceinline__ accumulate find_scaled(accumulate square,
                                                                  accumulate inverse,
                                                                  std::int64_t position, int first,
                                                                  int count) const
  {
    const rows_in_memory<T, row_pointers<T, Capacity>> of_position{p_, rows_, position, first};
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      const accumulate scaled = rescaled_inverse_rms(p_, of_position, k);
      if (row_of_lane_ == k && thread::overflowed(square)) { inverse = scaled; }
    }
    return inverse;
  }

  //! Eq. 5.
  __device__ __forceinline__ void mix(int count)
  {
    const step* next = steps_ + columns_.head_of_warp();
#pragma unroll 1
    for (int k = 0; k < count; ++k, next += storage::heads) {
      const char* const from = stream_.at(k);
      const step now = Rows > 1 ? *next : step_;
      state_.sum = thread::multiply_add(state_.sum, now.rescale, now.weight);
      // By the whole warp, whose lanes serve several heads.
      const auto chunk = [&](int i) { return chunk_of(from, i); };
      if (__any_sync(full_warp, now.rescale != accumulate{1})) {
        columns_.template add_row<true>(now, chunk);
      }
      else {
        columns_.template add_row<false>(now, chunk);
      }
      if constexpr (fetches_each) { stream_.replace_one(k); }
    }
  }

  __device__ __forceinline__ void end_position(std::int64_t position)
  {
    if (p_.lse != nullptr && columns_.first_of_head()) {
      p_.lse[position * p_.tree.num_heads + columns_.head(0)] = state_.log_sum_exp();
    }
    const accumulate normalizer = state_.normalizer();
    columns_.forget_addresses();
    if constexpr (!ends_without_norm) {
      if (p_.norm == output_norm::rms) {
        using squares_type = warp_squares<T, Chunks, Spans>;
        route_finish<T, columns_type, squares_type> finish{p_, columns_, squares_type{p_, sums_}};
        finish(position, own_normalizer<accumulate>{normalizer});
        return;
      }
    }
    const warp_ending<T, columns_type> ending{p_, columns_, position};
    if (stores_only_y(p_) && p_.y.type == element_of<T>::value) { ending.store_y(normalizer); }
    else if (ending.suits(p_, *gate_)) {
      if (streams_partial_) { stream_.wait(0); }
      const char* const partial = stream_.at(0);
      ending(normalizer, *gate_, [&](int i) { return chunk_of(partial, i); });
    }
    else {
      chunk_ending<T, columns_type>{p_, columns_, position}(normalizer);
    }
    if (streams_partial_) {
      stream_.wait(0);
      stream_.replace_one(0);
      stream_.leave(1);
    }
  }

  const route_parameters<T>& p_;
  const row_pointers<T, Capacity>& rows_;
  const warp_ring& ring_;
  char* memory_;
  int warp_;
  int lane_;
  int group_;  //!< of warps that share a position
  int part_;   //!< of which this is one
  columns_type columns_;
  int row_shift_;  //!< a lane's row of a batch are bits of its number, this many places up
  int row_of_lane_;
  warp_parameters<T, columns_type, ahead> parameters_;
  accumulate* null_logits_;
  accumulate* gate_;
  step* steps_;
  accumulate* sums_;
  bool streams_partial_;
  warp_rows<call_rows<T, Capacity>, Split> stream_;
  state state_;
  step step_;
  int odd_ = 0;  //!< of the batch, where warps share a position
};

}  // namespace block::detail
MHAR_NAMESPACE_END
