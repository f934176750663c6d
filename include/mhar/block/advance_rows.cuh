// SPDX-License-Identifier: Apache-2.0
//! A forward pass over a few rows: they stay in registers, and a warp serves eight positions of one
//! head.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/operand_scales.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/sweep_tensor_params.cuh>
#include <mhar/tuning/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Eight positions, all heads: warp h owns head h, lane 4*i + q columns 8q ... 8q+7 of every 32 of
//! position i. Logits of eight calls are one product on tensor cores whose second operand is the
//! row as it was loaded; the mix of a call is a sum over its rows in order.
//!
//! `Blocks` of them share a multiprocessor: with two, registers are fewer, and a state is loaded only
//! when its call is due.
//!
//! Queries wait in shared memory, a warp's own part of it, from before the kernels in front have
//! ended. Beside a new row, the other rows and the first kept state are read before that, too: they
//! were complete when the pass began to which the last of them was new, and nothing behind that pass
//! begins before.
//!
//! `Ends` where more follows the first call's mix: it and its lse pass through shared memory, and
//! every warp ends a position, or several.
//!
//! Threads      32 per head
//! Shared       shared_bytes
//! Barriers     one when a row is new, two where its squares overflow; one more when the pass `Ends`
//!              a call
//! Numerics     a position's bits do not depend on the number of calls
template <class T, int HeadWidth, int Rows, class State, int Blocks, bool Ends>
class advance_rows
{
public:
  static constexpr int max_heads = 8;
  struct storage
  {
    float squares[8][max_heads];
    float scaled_squares[8][max_heads];
  };

  //! Of a call and head.
  static constexpr int query_bytes = HeadWidth * 4;

  //! Floats of eight mixes with their lse, and of what the warps need to end them.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int ending_size(int num_heads)
  {
    const int width = num_heads * HeadWidth;
    return 8 * (width + num_heads) +
           num_heads * static_cast<int>(detail::call_ending<T>::parts_size(width, num_heads));
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int queries_end(int num_calls, int num_heads)
  {
    return static_cast<int>(sizeof(storage)) +
           (num_calls < 8 ? num_calls : 8) * num_heads * query_bytes;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int shared_bytes(int num_calls, int num_heads)
  {
    return queries_end(num_calls, num_heads) + (Ends ? ending_size(num_heads) * 4 : 0);
  }

  __device__ __forceinline__ advance_rows(const advance_tensor_params<T>& pass,
                                          unsigned char* shared)
      : pass_{pass},
        shared_{*reinterpret_cast<storage*>(shared)},
        first_mixes_{
            reinterpret_cast<float*>(shared + queries_end(pass.num_calls, pass.num_heads))},
        head_{static_cast<int>(threadIdx.x / 32)},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4},
        inside_{std::int64_t{blockIdx.x} * 8 + row_ < pass.num_positions},
        queries_{detail::shared_address(shared) + static_cast<int>(sizeof(storage)) +
                 head_ * ((pass.num_calls < 8 ? pass.num_calls : 8) * query_bytes)}
  {
    const std::int64_t position = std::int64_t{blockIdx.x} * 8 + row_;
    position_ = inside_ ? position : pass.num_positions - 1;
    column_ = head_ * HeadWidth + quad_ * 8;
  }

  //! Reads parameters, and asks for rows and states to be brought into the L2 cache, where a kernel
  //! in front still finds and changes them: before the kernels in front have ended.
  __device__ __forceinline__ void prepare()
  {
    copy_queries(0);
    if (reads_early()) { load_old_rows(); }
    if (lane_ < 8 && inside_of(lane_)) {
      const std::int64_t position = std::int64_t{blockIdx.x} * 8 + lane_;
#pragma unroll
      for (int n = 0; n < Rows; ++n) {
        if (n + 1 < Rows && reads_early()) { continue; }
        detail::prefetch_to_l2(pass_.rows + n * pass_.row_stride +
                                   position * pass_.position_stride + head_ * HeadWidth,
                               HeadWidth * 2);
      }
      if (pass_.kept && !(reads_early() && loads_state_early)) {
        detail::prefetch_to_l2(
            static_cast<State*>(pass_.states) + position * pass_.width + head_ * HeadWidth,
            HeadWidth * static_cast<int>(sizeof(State)));
      }
    }
  }

  __device__ __forceinline__ void run()
  {
    load_rows();
    if (pass_.has_new_row) { store_squares(1.0f, shared_.squares); }
    int first = 0;
    do {  // once without a call, too: a new row gets its inverse rms
      if (first > 0) {
        __syncwarp();
        copy_queries(first);
      }
      detail::wait_for_copy_groups<0>();
      __syncwarp();
      float logits[static_cast<std::size_t>(Rows)][2];
      multiply(first, logits);
      if (first == 0 && pass_.has_new_row) { find_new_inverse_rms(); }
      for (int j = 0; j < 8 && first + j < pass_.num_calls; ++j) { finish(first + j, j, logits); }
      first += 8;
    } while (first < pass_.num_calls);
    if constexpr (Ends) { end_first(); }
  }

private:
  static constexpr int vectors = HeadWidth / 32;
  static constexpr int steps = HeadWidth / 16;
  static constexpr bool loads_state_early = Blocks == 1 || Rows * vectors <= 12;
  // Where two blocks have room, blocks of the next pass have it beside this one's.
  static constexpr bool bounded = tuning::sweep_policy::advance_rows_blocks(
                                      HeadWidth, Rows, static_cast<int>(sizeof(State))) == 2;
  static constexpr bool loads_next_state =
      Blocks == 1 && vectors * 4 * (Rows + static_cast<int>(sizeof(State))) <= (bounded ? 80 : 160);

  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index(int call) const
  {
    return (call * pass_.num_positions + position_) * pass_.num_heads + head_;
  }
  [[nodiscard]] __device__ __forceinline__ State* state_of(int call) const
  {
    return static_cast<State*>(pass_.states) + call * pass_.slot_stride + position_ * pass_.width +
           column_;
  }

  //! Behind the first calls' mixes, [8][d]: their lse, [8][H].
  [[nodiscard]] __device__ __forceinline__ float* first_lse() const
  {
    return first_mixes_ + 8 * pass_.width;
  }
  [[nodiscard]] __device__ __forceinline__ bool inside_of(int row) const
  {
    return std::int64_t{blockIdx.x} * 8 + row < pass_.num_positions;
  }

  //! Vector v of call j lies at vector v ^ 4*(j % 2): the same vectors of two calls are in different
  //! banks.
  __device__ __forceinline__ void copy_queries(int first)
  {
    constexpr int vectors_of_call = query_bytes / 16;
    const int calls = (min)(pass_.num_calls - first, 8);
    for (int j = 0; j < calls; ++j) {
      const auto* const image =
          reinterpret_cast<const uint4*>(pass_.queries.image(pass_.first_call + first + j)) +
          head_ * vectors_of_call;
      for (int v = lane_; v < vectors_of_call; v += 32) {
        detail::copy_async(queries_ + j * query_bytes + (v ^ j % 2 * 4) * 16, image + v);
      }
    }
    detail::end_copy_group();
  }

  [[nodiscard]] __device__ __forceinline__ bool reads_early() const
  {
    return Rows > 1 && pass_.has_new_row;
  }
  [[nodiscard]] __device__ __forceinline__ const T* row_of(int n) const
  {
    return pass_.rows + n * pass_.row_stride + position_ * pass_.position_stride + column_;
  }

  __device__ __forceinline__ void load_old_rows()
  {
#pragma unroll
    for (int n = 0; n + 1 < Rows; ++n) {
#pragma unroll
      for (int u = 0; u < vectors; ++u) { rows_[n][u] = detail::load_early(row_of(n) + u * 32); }
    }
    if (pass_.kept && loads_state_early) {
      state_.load_before_wait(state_of(0));
      state_lse_ = detail::load_early_float(pass_.state_lse + head_index(0));
    }
  }

  __device__ __forceinline__ void load_rows()
  {
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      rows_[Rows - 1][u] = detail::load_vector(row_of(Rows - 1) + u * 32);
    }
    if (!reads_early()) {
#pragma unroll
      for (int n = 0; n + 1 < Rows; ++n) {
#pragma unroll
        for (int u = 0; u < vectors; ++u) { rows_[n][u] = detail::load_vector(row_of(n) + u * 32); }
      }
    }
    if (pass_.kept && loads_state_early && !reads_early()) {
      state_.load(state_of(0));
      state_lse_ = pass_.state_lse[head_index(0)];
    }
#pragma unroll
    for (int n = 0; n < Rows; ++n) {
      if (n + 1 < Rows || !pass_.has_new_row) {
        inverse_[n] = pass_.inverse_rms[n * pass_.num_positions + position_];
      }
    }
  }

  //! Squares of the new row's columns of this head, under a scale.
  __device__ __forceinline__ void store_squares(float scale, float (&to)[8][max_heads]) const
  {
    float sum = detail::sum_squares<T, vectors>(rows_[Rows - 1], scale);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (quad_ == 0) { to[row_][head_] = sum; }
  }
  //! Heads in order.
  [[nodiscard]] __device__ __forceinline__ float sum_heads(const float (&of)[8][max_heads]) const
  {
    float sum = 0;
#pragma unroll
    for (int h = 0; h < max_heads; ++h) { sum += h < pass_.num_heads ? of[row_][h] : 0.0f; }
    return sum;
  }
  //! In front of its barrier lie the products with the first calls. Squares that overflow are summed
  //! again under a scale.
  __device__ __forceinline__ void find_new_inverse_rms()
  {
    __syncthreads();
    const float sum = sum_heads(shared_.squares);
    float scaled = 0;
    if (__any_sync(0xffffffffu, thread::overflowed(sum))) {  // all warps, or none
      store_squares(thread::overflow_scale<float>, shared_.scaled_squares);
      __syncthreads();
      scaled = sum_heads(shared_.scaled_squares);
    }
    const float inverse = detail::row_inverse_rms(sum, scaled, pass_.inverse_width, pass_.eps);
    inverse_[Rows - 1] = inverse;
    if (head_ == 0 && quad_ == 0 && inside_) {
      pass_.inverse_rms[(Rows - 1) * pass_.num_positions + position_] = inverse;
    }
  }

  //! <w, s> of eight calls and eight positions: logits[n][e] is call first + row_, position
  //! 2*quad_ + e. With one or two rows, odd and even steps are sums of their own, so that products
  //! wait less for another.
  __device__ __forceinline__ void multiply(int first,
                                           float (&logits)[static_cast<std::size_t>(Rows)][2]) const
  {
    constexpr int chains = Rows <= 2 ? 2 : 1;
    float sums[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(chains)][4];
#pragma unroll
    for (int n = 0; n < Rows; ++n) {
#pragma unroll
      for (int c = 0; c < chains; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) { sums[n][c][e] = 0; }
      }
    }
    const bool has_call = first + row_ < pass_.num_calls;
    const std::uint32_t own = queries_ + (has_call ? row_ * query_bytes : 0) + quad_ * 16;
    const int swap = row_ % 2;
#pragma unroll
    for (int t = 0; t < steps; ++t) {
      uint4 query = make_uint4(0, 0, 0, 0);
      if (has_call) { query = detail::load_shared(own + (t ^ swap) * 64); }
#pragma unroll
      for (int n = 0; n < Rows; ++n) {
        detail::multiply_add_16<T>(sums[n][t % chains], query.x, query.y, query.z, query.w,
                                   detail::pair_of(rows_[n][t / 2], t % 2 * 2),
                                   detail::pair_of(rows_[n][t / 2], t % 2 * 2 + 1));
      }
    }
#pragma unroll
    for (int n = 0; n < Rows; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        logits[n][e] = detail::join_parts<T>(sums[n][0], e);
        if constexpr (chains == 2) { logits[n][e] += detail::join_parts<T>(sums[n][1], e); }
      }
    }
  }

  //! Makes the rows look changed, so that they are not kept as floats from one call to the next:
  //! that takes twice their registers.
  __device__ __forceinline__ void keep_packed()
  {
#pragma unroll
    for (int n = 0; n < Rows; ++n) {
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
        uint4& vector = rows_[n][u];
        asm volatile("" : "+r"(vector.x), "+r"(vector.y), "+r"(vector.z), "+r"(vector.w));
      }
    }
  }

  //! Softmax and mix of one call, `j` within its group of eight.
  __device__ __forceinline__ void finish(int call, int j,
                                         const float (&logits)[static_cast<std::size_t>(Rows)][2])
  {
    if (pass_.kept && ((call > 0 && !loads_next_state) || !loads_state_early)) {
      state_.load(state_of(call));
      state_lse_ = pass_.state_lse[head_index(call)];
    }
    detail::state_vectors<State, vectors> next;
    float next_lse = 0;
    const bool has_next = loads_next_state && pass_.kept && call + 1 < pass_.num_calls;
    if (has_next) {
      next.load(state_of(call + 1));
      next_lse = pass_.state_lse[head_index(call + 1)];
    }
    keep_packed();
    float weights[Rows];
    // Products that the compiler must not fuse with the differences below: kernels with another
    // number of blocks round alike.
    const float carried = pass_.kept ? __fmul_rn(state_lse_, detail::log2_of_e) : -INFINITY;
    float largest = carried;
#pragma unroll
    for (int n = 0; n < Rows; ++n) {
      const float even = __shfl_sync(0xffffffffu, logits[n][0], j * 4 + row_ / 2);
      const float odd = __shfl_sync(0xffffffffu, logits[n][1], j * 4 + row_ / 2);
      weights[n] = __fmul_rn(row_ % 2 == 0 ? even : odd, __fmul_rn(inverse_[n], detail::log2_of_e));
      largest = fmaxf(largest, weights[n]);
    }
    float carried_weight = detail::exp2_approximate(carried - largest);
    float sum = carried_weight;
#pragma unroll
    for (int n = 0; n < Rows; ++n) {
      weights[n] = detail::exp2_approximate(weights[n] - largest);
      sum += weights[n];
    }
    const float factor = __fdividef(1.0f, sum);
    carried_weight *= factor;
#pragma unroll
    for (int n = 0; n < Rows; ++n) { weights[n] *= factor; }
    if (inside_) {
      store(call, carried_weight, weights, (largest + __log2f(sum)) * detail::log_of_2);
    }
    if (has_next) {
      state_ = next;
      state_lse_ = next_lse;
    }
  }

  __device__ __forceinline__ void store(int call, float carried_weight,
                                        const float (&weights)[static_cast<std::size_t>(Rows)],
                                        float lse);
  __device__ __forceinline__ void end_first();

  const advance_tensor_params<T>& pass_;
  storage& shared_;
  float* first_mixes_;
  int head_;
  int lane_;
  int row_;   // i: a position, or a call of an operand
  int quad_;  // q
  bool inside_;
  std::uint32_t queries_;  // of this head
  std::int64_t position_;
  std::int64_t column_;
  uint4 rows_[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(vectors)];
  detail::state_vectors<State, vectors> state_;
  float state_lse_ = 0;
  float inverse_[static_cast<std::size_t>(Rows)];
};

}  // namespace block
MHAR_NAMESPACE_END

#include <mhar/block/detail/advance_rows_ending.cuh>
