// SPDX-License-Identifier: Apache-2.0
//! A backward pass over a few calls: a warp serves eight positions of one head, row by row.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/operand_scales.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/sweep_tensor_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! All heads of eight positions at a time: tiles blockIdx.x, blockIdx.x + gridDim.x, ... Lane
//! 4*i + q of warp h holds columns 8q ... 8q+7 of every 32 of head h of position i, of the calls'
//! gradients for the whole tile and of one row after the other. Of more than four calls, the
//! gradients of all but the first wait in shared memory.
//!
//! On tensor cores are <w, s>, <do, s> and D (of the products of eight positions with eight, those
//! with themselves), dw (over the eight positions: the row is transposed in registers), and of more
//! than four calls what factors and queries add to a row's gradient; the rest is a few
//! multiply-adds per element. What the block adds to dw goes to chunk blockIdx.x of the partial sums.
//!
//! What no kernel since the last pass can have written is read before the kernels in front have
//! ended: the top row, the gradients of all calls but the first, and kept gradients of rows that the
//! last pass did not take part in.
//!
//! `Ahead` where a block has several tiles: what comes next, a row of the tile or all of the next
//! tile, is copied to shared memory meanwhile. Every lane copies its own pieces and reads them back,
//! so nobody waits for another.
//!
//! Threads      32 per head
//! Barriers     two per tile, one where its only row is finished
//! Shared       shared_bytes
//! Numerics     calls in order; a position's bits do not depend on the number of rows
template <class T, int HeadWidth, int Calls, class State, bool Ahead>
class gather_calls
{
public:
  static constexpr int max_heads = 8;

  //! Per warp: the queries as they meet factors and as operand; the calls' shares of dw, or their
  //! gradients. Then two tiles' head sums.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int shared_bytes(int num_heads, int num_rows)
  {
    return num_heads * (head_bytes + (Ahead ? ahead_bytes : 0)) + 2 * num_rows * 8 * max_heads * 4;
  }

  __device__ __forceinline__ gather_calls(const gather_tensor_params<T>& pass, float* shared)
      : pass_{pass},
        head_{static_cast<int>(threadIdx.x / 32)},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4}
  {
    query_ = shared + head_ * (head_bytes / 4);
    image_ = reinterpret_cast<uint4*>(query_ + query_bytes / 4);
    query_sums_ = query_ + query_bytes / 4 + Calls * HeadWidth;
    head_sums_ = shared + pass.num_heads * (head_bytes / 4);
    other_sums_ = pass.num_rows * 8 * max_heads;
    if (Ahead) {
      ahead_ = detail::shared_address(head_sums_ + 2 * other_sums_) +
               static_cast<std::uint32_t>(head_ * ahead_bytes + lane_ * 16);
    }
    column_ = head_ * HeadWidth + quad_ * 8;
  }

  //! Before the kernels in front have ended: reads parameters and, of the first tile, what is old,
  //! and asks for the rest to be brought into the L2 cache, where a kernel in front still finds and
  //! changes it.
  __device__ __forceinline__ void prepare()
  {
    copy_queries();
    move_to(blockIdx.x);
    if (pass_.reads_early) { load_old<true>(); }
    if (reads_state_early()) {
#pragma unroll
      for (int u = 0; u < vectors; ++u) { state_.template load_one<true>(u, state_of(0) + u * 32); }
    }
    if (asks) { ask_for_tile(); }
    if constexpr (shares) { pack_queries(); }
#pragma unroll
    for (int c = 0; c < Calls; ++c) {
      gate_[c] = pass_.gate[c];
      logit_gate_[c] = pass_.logit_gate[c];
    }
  }

  __device__ __forceinline__ void run()
  {
    if (!pass_.reads_early) { load_old<false>(); }
    bool loads_state = pass_.kept && !reads_state_early();
    const std::int64_t tiles = (pass_.num_positions + 7) / 8;
    std::int64_t tile = blockIdx.x;
    while (true) {
      detail::state_vectors<T, vectors> mix{};
      if constexpr (Ahead) {
        if (tile != blockIdx.x) { take_tile(mix); }
      }
      if (!Ahead || tile == blockIdx.x) {
        if (loads_state) { state_.load(state_of(0)); }
        load<false>(gradients_[0], gradient_of(0));
        load_numbers();
        load_mix(mix);
        if (!shares && tile == blockIdx.x) { copy_query_sums(); }
      }
      detail::wait_for_copy_groups<shares ? 0 : 1>();  // all but the sums
      __syncwarp();
      float logits[2];
      multiply(logits);
      find_dot(mix);
      if constexpr (Ahead) { copy_ahead(1, tiles); }
      int m = 0;
      while (true) {
        gather_row(m, logits);
        if (++m == pass_.num_rows) { break; }
        if constexpr (Ahead) {
          take_row();
          copy_ahead(m + 1, tiles);
        }
        else {
          load_row(m);
        }
        multiply(logits);
      }
      store_head_sums();
      head_sums_ += other_sums_;
      other_sums_ = -other_sums_;
      tile += gridDim.x;
      if (tile >= tiles) { break; }
      move_to(tile);
      if (!Ahead) { load_old<false>(); }
      loads_state = pass_.kept;
    }
    store_query_sums();
  }

private:
  static constexpr int vectors = HeadWidth / 32;
  static constexpr int steps = HeadWidth / 16;
  //! Calls whose gradients are in registers.
  static constexpr int resident = Calls <= 4 ? Calls : 1;
  static constexpr bool shares = resident < Calls;
  //! With more calls there is less that is new, and its loads follow at once.
  static constexpr bool asks = Calls == 1;
  //! A gradient's bytes of a position and head in shared memory: those of two positions are in
  //! different banks.
  static constexpr int line = HeadWidth * 2 + (HeadWidth % 64 == 0 ? 64 : 0);
  static constexpr int query_bytes = shares ? HeadWidth * 32 : Calls * HeadWidth * 4;
  static constexpr int gradient_bytes = (Calls - resident) * 8 * line;
  static constexpr int head_bytes =
      query_bytes + Calls * HeadWidth * 4 + (shares ? gradient_bytes : Calls * HeadWidth * 4);
  static_assert(!shares || gradient_bytes >= Calls * HeadWidth * 4,
                "dw leaves through the gradients' place");

  static_assert(!Ahead || (!shares && sizeof(State) == 2), "there is no room for more");
  //! A vector of every lane, and where they lie in what is copied ahead: a row, its kept gradient,
  //! the mix, the calls' gradients, and numbers, of which four are a vector.
  static constexpr int piece = 32 * 16;
  static constexpr int mix_ahead = 2 * vectors;
  static constexpr int gradients_ahead = 3 * vectors;
  static constexpr int numbers_ahead = (3 + Calls) * vectors;
  static constexpr int ahead_bytes = (numbers_ahead + (2 * Calls + 3 + 3) / 4) * piece;

  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index(int call) const
  {
    return (call * pass_.num_positions + position_) * pass_.num_heads + head_;
  }
  [[nodiscard]] __device__ __forceinline__ State* state_of(int m) const
  {
    return state_of(m, position_);
  }
  [[nodiscard]] __device__ __forceinline__ State* state_of(int m, std::int64_t position) const
  {
    return static_cast<State*>(pass_.states) + m * pass_.slot_stride + position * pass_.width +
           column_;
  }
  [[nodiscard]] __device__ __forceinline__ float4* query_sums_of(int call) const
  {
    return reinterpret_cast<float4*>(pass_.query_sums + call * pass_.width +
                                     blockIdx.x * pass_.chunk_stride + head_ * HeadWidth);
  }

  __device__ __forceinline__ void move_to(std::int64_t tile)
  {
    tile_ = tile;
    inside_ = tile * 8 + row_ < pass_.num_positions;
    position_ = inside_ ? tile * 8 + row_ : pass_.num_positions - 1;
  }

  [[nodiscard]] __device__ __forceinline__ const T* row_of(int m) const
  {
    return row_of(m, position_);
  }
  [[nodiscard]] __device__ __forceinline__ const T* row_of(int m, std::int64_t position) const
  {
    return pass_.rows + m * pass_.row_stride + position * pass_.position_stride + column_;
  }
  [[nodiscard]] __device__ __forceinline__ const T* gradient_of(int call) const
  {
    return pass_.call_gradients + call * pass_.call_stride +
           position_ * pass_.call_position_stride + column_;
  }

  template <bool Early>
  __device__ __forceinline__ static void load(uint4 (&to)[static_cast<std::size_t>(vectors)],
                                              const T* from)
  {
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      to[u] = Early ? detail::load_early(from + u * 32) : detail::load_vector(from + u * 32);
    }
  }
  template <bool Early>
  [[nodiscard]] __device__ __forceinline__ static float load_float(const float* from)
  {
    return Early ? detail::load_early_float(from) : *from;
  }

  [[nodiscard]] __device__ __forceinline__ bool reads_state_early() const
  {
    return pass_.kept && pass_.reads_early && pass_.old_states;
  }

  [[nodiscard]] __device__ __forceinline__ uint4 gradient_at(int c, int u) const
  {
    if (c < resident) { return gradients_[c < resident ? c : 0][u]; }
    return *reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(query_sums_) +
                                           ((c - 1) * 8 + row_) * line + u * 64 + quad_ * 16);
  }

  //! Of the rows whose gradients are kept, the first.
  [[nodiscard]] __device__ __forceinline__ int first_kept() const { return pass_.finishes ? 1 : 0; }
  [[nodiscard]] __device__ __forceinline__ float kept_sum(int m) const
  {
    return pass_.kept ? pass_.head_sums[m * pass_.num_positions + position_] : 0.0f;
  }

  //! The kept head sum of a row of this lane's position plus what the heads have found.
  [[nodiscard]] __device__ __forceinline__ float total_head_sum(int m, float sum) const
  {
#pragma unroll
    for (int h = 0; h < max_heads; ++h) {
      sum += h < pass_.num_heads ? head_sums_[(m * 8 + row_) * max_heads + h] : 0.0f;
    }
    return sum;
  }

  __device__ __forceinline__ void store_head_sums()
  {
    if (first_kept() == pass_.num_rows) { return; }
    __syncthreads();
    if (quad_ != 0 || !inside_) { return; }
    for (int m = first_kept() + head_; m < pass_.num_rows; m += pass_.num_heads) {
      pass_.head_sums[m * pass_.num_positions + position_] =
          total_head_sum(m, m == first_kept() + head_ ? own_sum_ : kept_sum(m));
    }
  }

  //! Makes vectors look changed, so that they are not kept as floats: that takes twice their
  //! registers.
  __device__ __forceinline__ static void keep_packed(uint4 (&of)[static_cast<std::size_t>(vectors)])
  {
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      asm volatile("" : "+r"(of[u].x), "+r"(of[u].y), "+r"(of[u].z), "+r"(of[u].w));
    }
  }

  __device__ __forceinline__ void copy_queries();
  __device__ __forceinline__ void pack_queries();
  __device__ __forceinline__ void copy_gradients();
  template <bool Early>
  __device__ __forceinline__ void load_old();
  __device__ __forceinline__ void load_numbers();
  __device__ __forceinline__ void load_row(int m);
  __device__ __forceinline__ void load_mix(detail::state_vectors<T, vectors>& mix) const;
  __device__ __forceinline__ void ask_for(const void* from, int bytes) const;
  __device__ __forceinline__ void ask_for_tile() const;

  __device__ __forceinline__ void copy_vectors(int place, const void* from) const;
  __device__ __forceinline__ void copy_number(int index, const float* from) const;
  __device__ __forceinline__ void take(uint4 (&to)[static_cast<std::size_t>(vectors)],
                                       int place) const;
  [[nodiscard]] __device__ __forceinline__ float number(int index) const;
  __device__ __forceinline__ void copy_ahead(int m, std::int64_t tiles) const;
  __device__ __forceinline__ void copy_row(int m, std::int64_t position) const;
  __device__ __forceinline__ void copy_tile(std::int64_t position) const;
  __device__ __forceinline__ void take_row();
  __device__ __forceinline__ void take_tile(detail::state_vectors<T, vectors>& mix);

  __device__ __forceinline__ void multiply(float (&logits)[2]) const;
  __device__ __forceinline__ void find_products(
      int c, const uint4 (&of)[static_cast<std::size_t>(vectors)], float (&products)[2]) const;
  __device__ __forceinline__ void find_dot(const detail::state_vectors<T, vectors>& mix);
  __device__ __forceinline__ void gather_row(int m, const float (&logits)[2]);
  template <bool Finishes>
  __device__ __forceinline__ void store_row(int m,
                                            const float (&weights)[static_cast<std::size_t>(Calls)],
                                            const float (&factors)[static_cast<std::size_t>(Calls)],
                                            std::uint32_t high, std::uint32_t low,
                                            float correction);

  __device__ __forceinline__ void copy_query_sums();
  __device__ __forceinline__ void add_to_queries(std::uint32_t high, std::uint32_t low);
  __device__ __forceinline__ void multiply_row(int u, std::uint32_t high, std::uint32_t low,
                                               float (&sums)[2][4]) const;
  template <bool Adds>
  __device__ __forceinline__ void leave_sums(
      const float (&sums)[static_cast<std::size_t>(vectors)][2][4]);
  __device__ __forceinline__ void store_query_sums();

  const gather_tensor_params<T>& pass_;
  int head_;
  int lane_;
  int row_;       // i: a position, or a call of an operand
  int quad_;      // q
  float* query_;  // [Calls][HeadWidth], or pairs of calls as an operand
  uint4* image_;
  float* query_sums_;  // [Calls][HeadWidth] of dw, in the end where gradients were
  float* head_sums_;   // [rows][8][max_heads] of this tile
  int other_sums_;     // how far those of the next tile are, which may be made before all are read
  std::uint32_t ahead_ = 0;  // this lane's place
  std::int64_t column_;
  bool inside_ = false;
  std::int64_t position_ = 0;
  uint4 gradients_[static_cast<std::size_t>(resident)][static_cast<std::size_t>(vectors)];
  uint4 row_values_[static_cast<std::size_t>(vectors)];
  detail::state_vectors<State, vectors> state_{};  // zeros where none is kept
  float lse_[static_cast<std::size_t>(Calls)];
  float dot_[static_cast<std::size_t>(Calls)];
  float gate_[static_cast<std::size_t>(Calls)];
  float logit_gate_[static_cast<std::size_t>(Calls)];
  float inverse_ = 0;
  std::int64_t tile_ = 0;
  float sums_[static_cast<std::size_t>(shares ? vectors : 1)][2][4] = {};  // of dw
  float top_sum_ = 0;                                                      // kept, of the top row
  float own_sum_ = 0;  // and of the first row whose head sum this warp stores
};

}  // namespace block
MHAR_NAMESPACE_END

#include <mhar/block/detail/gather_calls_ahead.cuh>
#include <mhar/block/detail/gather_calls_loads.cuh>
#include <mhar/block/detail/gather_calls_queries.cuh>
#include <mhar/block/detail/gather_calls_rows.cuh>
