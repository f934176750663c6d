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
//! `HasNull` where calls start from null sources: they wait beside the queries, instead of kept states.
//!
//! Threads      32 per head
//! Shared       shared_bytes
//! Barriers     one when a row is new, two where its squares overflow; one more when the pass `Ends`
//!              a call, two from null sources over old rows
//! Numerics     a position's bits do not depend on the number of calls
template <class T, int HeadWidth, int Rows, class State, int Blocks, bool Ends, bool HasNull>
class advance_rows
{
public:
  static constexpr int max_heads = 8;
  struct storage
  {
    float squares[8][max_heads];
    float scaled_squares[8][max_heads];
  };

  //! Of a call and head; its null source has as many.
  static constexpr int query_bytes = HeadWidth * 4;

  //! Floats of eight mixes with their lse, and of what the warps need to end them.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int ending_size(int num_heads)
  {
    const int width = num_heads * HeadWidth;
    return 8 * (width + num_heads) +
           num_heads * static_cast<int>(detail::call_ending<T>::parts_size(width, num_heads));
  }
  //! Queries of all heads, or null sources; those of eight calls at most.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int parameter_bytes(int num_calls, int num_heads)
  {
    return (num_calls < 8 ? num_calls : 8) * num_heads * query_bytes;
  }
  //! Behind null sources and queries, or in the place of queries that are not read again.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int ending_begin(int num_calls, int num_heads)
  {
    const bool takes_place = HasNull && num_calls <= 8;
    return static_cast<int>(sizeof(storage)) +
           (HasNull && !takes_place ? 2 : 1) * parameter_bytes(num_calls, num_heads);
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int shared_bytes(int num_calls, int num_heads)
  {
    const int parameters = static_cast<int>(sizeof(storage)) +
                           (HasNull ? 2 : 1) * parameter_bytes(num_calls, num_heads);
    const int end = ending_begin(num_calls, num_heads) + ending_size(num_heads) * 4;
    return Ends && end > parameters ? end : parameters;
  }

  __device__ __forceinline__ advance_rows(const advance_tensor_params<T>& pass,
                                          unsigned char* shared)
      : pass_{pass},
        shared_{*reinterpret_cast<storage*>(shared)},
        first_mixes_{
            reinterpret_cast<float*>(shared + ending_begin(pass.num_calls, pass.num_heads))},
        head_{static_cast<int>(threadIdx.x / 32)},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4},
        position_{std::int64_t{blockIdx.x} * 8 + row_},
        inside_{position_ < pass.num_positions ? 1 : 0},
        queries_{detail::shared_address(shared) + static_cast<int>(sizeof(storage)) +
                 (HasNull ? parameter_bytes(pass.num_calls, pass.num_heads) : 0) +
                 parameter_bytes(pass.num_calls, 1) * head_}
  {
    if (inside_ == 0) { position_ = pass.num_positions - 1; }
    asm volatile("" : "+r"(inside_));  // not compared again
  }

  //! Reads parameters, and asks for rows and states to be brought into the L2 cache, where a kernel
  //! in front still finds and changes them: before the kernels in front have ended.
  __device__ __forceinline__ void prepare()
  {
    copy_queries(0);
    find_places();
    if (reads_early()) { load_old_rows<true>(); }
    else {
      const T* row = place_in(pass_.rows, pass_.position_stride);
      for (int n = 0; n + 1 < Rows; ++n) {
        prefetch(row);
        row += pass_.row_stride;
      }
    }
    prefetch(new_row_);
    if (is_kept() && !(reads_early() && loads_state_early)) { prefetch(state_of_); }
    // Heads that do not exist count as zero.
    for (int h = quad_; head_ == 0 && h < max_heads; h += 4) {
      if (h >= pass_.num_heads) { shared_.squares[row_][h] = shared_.scaled_squares[row_][h] = 0; }
    }
  }

  __device__ __forceinline__ void run()
  {
    load_rows();
    int first = 0;
    do {  // once without a call, too: a new row gets its inverse rms
      if (first > 0) {
        __syncwarp();
        copy_queries(first);
      }
      detail::wait_for_copy_groups<0>();
      __syncwarp();
      float logits[static_cast<std::size_t>(Rows)][2];
      // Those of the old rows while the new one is on its way.
      if constexpr (Rows > 1) { multiply<0, Rows - 1>(first, logits); }
      if (first == 0 && pass_.has_new_row) { store_squares(1.0f, shared_.squares); }
      multiply<Rows - 1, Rows>(first, logits);
      if (first == 0 && pass_.has_new_row) { find_new_inverse_rms(); }
      else if (first == 0 && HasNull && Ends) {
        __syncthreads();  // the ending takes the queries' place
      }
#pragma unroll 1
      for (int j = 0; j < 8 && first + j < pass_.num_calls; ++j) { finish(first + j, j, logits); }
      first += 8;
    } while (first < pass_.num_calls);
    if constexpr (Ends) { end_first(); }
  }

private:
  static constexpr int vectors = HeadWidth / 32;
  static constexpr bool loads_state_early = Blocks == 1 || Rows * vectors <= 12;
  // Where two blocks have room, blocks of the next pass have it beside this one's.
  static constexpr bool bounded = tuning::sweep_policy::advance_rows_blocks(
                                      HeadWidth, Rows, static_cast<int>(sizeof(State))) == 2;
  static constexpr bool loads_next_state =
      Blocks == 1 && vectors * 4 * (Rows + static_cast<int>(sizeof(State))) <= (bounded ? 80 : 160);

  [[nodiscard]] __device__ __forceinline__ bool is_kept() const { return !HasNull && pass_.kept; }
  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index() const
  {
    return position_ * pass_.num_heads + head_;
  }
  //! The lane's vector 0 in a matrix, and vector u from there.
  template <class Element>
  [[nodiscard]] __device__ __forceinline__ Element* place_in(Element* matrix,
                                                             std::int64_t pitch) const
  {
    return matrix + position_ * pitch + head_ * HeadWidth + quad_ * 8;
  }

  //! Pointers that are needed when there is no time for arithmetic.
  __device__ __forceinline__ void find_places()
  {
    new_row_ = found(place_in(pass_.rows + (Rows - 1) * pass_.row_stride, pass_.position_stride));
    new_inverse_ = found(pass_.inverse_rms + (Rows - 1) * pass_.num_positions + position_);
    state_of_ = found(place_in(static_cast<State*>(pass_.states), pass_.width));
    lse_of_ = found(pass_.state_lse + head_index());
    y_ = found(place_in(pass_.y, pass_.y_stride));
    lse_ = found(pass_.lse + head_index());
  }
  //! This head of a row or state, of which a lane holds `place`: a line of 128 bytes per lane, where
  //! the bulk prefetch takes a loop over the lanes.
  template <class Element>
  __device__ __forceinline__ void prefetch(const Element* place) const
  {
    constexpr int lines = (HeadWidth * static_cast<int>(sizeof(Element)) + 127) / 128;
    const auto* const line = reinterpret_cast<const char*>(place - quad_ * 8) + quad_ * 128;
#pragma unroll
    for (int x = 0; x < lines; x += 4) {
      if (x + quad_ < lines) { detail::prefetch_to_l2(line + x * 128); }
    }
  }
  //! A pointer to global memory that the compiler must find here.
  template <class Element>
  [[nodiscard]] __device__ __forceinline__ static Element* found(Element* pointer)
  {
    asm volatile("" : "+l"(pointer));
    __builtin_assume(__isGlobal(pointer));
    return pointer;
  }

  //! Of the call `ahead` calls behind the one at work.
  template <bool Early>
  __device__ __forceinline__ void load_state(detail::state_vectors<State, vectors>& state,
                                             float& lse, int ahead) const
  {
    const State* const from = state_of_ + ahead * pass_.slot_stride;
    const float* const from_lse = lse_of_ + ahead * lse_stride();
#pragma unroll
    for (int u = 0; u < vectors; ++u) { state.template load_one<Early>(u, from + u * 32); }
    lse = Early ? detail::load_early_float(from_lse) : *from_lse;
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t lse_stride() const
  {
    return pass_.num_positions * pass_.num_heads;
  }
  template <bool Early>
  __device__ __forceinline__ void load_row(int n, const T* from)
  {
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      rows_[n][u] = Early ? detail::load_early(from + u * 32) : detail::load_vector(from + u * 32);
    }
  }

  //! Behind the first calls' mixes, [8][d]: their lse, [8][H].
  [[nodiscard]] __device__ __forceinline__ float* first_lse() const
  {
    return first_mixes_ + 8 * pass_.width;
  }

  __device__ __forceinline__ void copy_queries(int first) const;
  __device__ __forceinline__ void copy_nulls(int first, int calls) const;
  //! Of call j of the eight at work.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t nulls_of(int j) const
  {
    return queries_ - parameter_bytes(pass_.num_calls, pass_.num_heads) + j * query_bytes;
  }

  [[nodiscard]] __device__ __forceinline__ bool reads_early() const
  {
    return Rows > 1 && pass_.has_new_row;
  }
  template <bool Early>
  __device__ __forceinline__ void load_old_rows()
  {
    const T* row = place_in(pass_.rows, pass_.position_stride);
#pragma unroll
    for (int n = 0; n + 1 < Rows; ++n) {
      load_row<Early>(n, row);
      row += pass_.row_stride;
    }
    if (is_kept() && loads_state_early) { load_state<Early>(state_, state_lse_, 0); }
  }
  __device__ __forceinline__ void load_rows()
  {
    load_row<false>(Rows - 1, new_row_);
    if (!reads_early()) { load_old_rows<false>(); }
#pragma unroll
    for (int n = 0; n < Rows; ++n) {
      if (n + 1 < Rows || !pass_.has_new_row) {
        inverse_[n] = new_inverse_[(n + 1 - Rows) * pass_.num_positions];
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
    const auto* const heads = reinterpret_cast<const float4*>(of[row_]);
    const float4 a = heads[0];
    const float4 b = heads[1];
    return a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
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
    if (head_ == 0 && quad_ == 0 && inside_ != 0) { *new_inverse_ = inverse; }
  }

  template <int Begin, int End>
  __device__ __forceinline__ void multiply(
      int first, float (&logits)[static_cast<std::size_t>(Rows)][2]) const;

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
    if (is_kept() && ((call > 0 && !loads_next_state) || !loads_state_early)) {
      load_state<false>(state_, state_lse_, 0);
    }
    detail::state_vectors<State, vectors> next{};
    float next_lse = 0;
    const bool has_next = loads_next_state && is_kept() && call + 1 < pass_.num_calls;
    if (has_next) { load_state<false>(next, next_lse, 1); }
    keep_packed();
    float weights[Rows];
    // Products that the compiler must not fuse with the differences below: kernels with another
    // number of blocks round alike.
    if constexpr (HasNull) { state_lse_ = pass_.null_logit[call * pass_.num_heads + head_]; }
    const float carried =
        HasNull || pass_.kept ? __fmul_rn(state_lse_, detail::log2_of_e) : -INFINITY;
    float largest = carried;
#pragma unroll
    for (int n = 0; n < Rows; ++n) {
      const float even = __shfl_sync(0xffffffffu, logits[n][0], j * 4 + row_ / 2);
      const float odd = __shfl_sync(0xffffffffu, logits[n][1], j * 4 + row_ / 2);
      const float logit = row_ % 2 == 0 ? even : odd;
      weights[n] = __fmul_rn(logit, __fmul_rn(inverse_[n], detail::log2_of_e));
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
    store(call, j, carried_weight, weights, (largest + __log2f(sum)) * detail::log_of_2);
    if (has_next) {
      state_ = next;
      state_lse_ = next_lse;
    }
    state_of_ += pass_.slot_stride;
    lse_of_ += lse_stride();
  }

  __device__ __forceinline__ void store(int call, int j, float carried_weight,
                                        const float (&weights)[static_cast<std::size_t>(Rows)],
                                        float lse);
  __device__ __forceinline__ void end_first();

  const advance_tensor_params<T>& pass_;
  storage& shared_;
  float* first_mixes_;
  int head_;
  int lane_;
  int row_;                // i: a position, or a call of an operand
  int quad_;               // q
  std::int64_t position_;  // the last one where the lane's does not exist
  int inside_;             // whether it does
  std::uint32_t queries_;  // of this head
  const T* new_row_;
  float* new_inverse_;
  State* state_of_;  // of the call at work
  float* lse_of_;
  T* y_;
  float* lse_;
  uint4 rows_[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(vectors)];
  detail::state_vectors<State, vectors> state_{};
  float state_lse_ = 0;
  float inverse_[static_cast<std::size_t>(Rows)];
};

}  // namespace block
MHAR_NAMESPACE_END

#include <mhar/block/detail/advance_rows_copies.cuh>
#include <mhar/block/detail/advance_rows_ending.cuh>
#include <mhar/block/detail/advance_rows_products.cuh>
