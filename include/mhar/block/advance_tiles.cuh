// SPDX-License-Identifier: Apache-2.0
//! A forward pass over many rows: rows stream through shared memory in tiles of 16, logits and mixes
//! are products on tensor cores.
#pragma once

#include <mhar/block/advance_tiles_layout.cuh>
#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/bfloat16_pairs.cuh>
#include <mhar/block/detail/swizzled_tile.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/detail/tile_copy.cuh>
#include <mhar/block/sweep_tensor_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Up to 8*Halves calls and a range of positions, all heads. A unit of work is one head of a
//! position; warps take units in turn and keep its mixes in registers. Tiles of rows, and the kept
//! states as a tile of their own, come through a ring that is the warp's own, so no warp waits for
//! another but for the queries and for the inverse rms of a new row, once.
//!
//! Eight calls are one first operand of the logits: their high parts in rows 0 to 7, the low ones in
//! rows 8 to 15. The logits leave the product in the layout in which the weights are the second
//! operand of the mixes, whose first one is a tile of rows, transposed.
//!
//! Lane 4*i + q has logits of call i (of each half), lines 2q, 2q+1 of every 8; mixes of calls 2q,
//! 2q+1, columns i, i + 8 of every 16.
//!
//! Barriers     one, and one more when a row is new
//! Shared       advance_tiles_layout
//! Numerics     rows in tiles of 16, softmax online; a call's bits do not depend on the others
template <int HeadWidth, int Halves, int Stages, class State>
class advance_tiles
{
public:
  using layout = advance_tiles_layout<HeadWidth>;
  using tile = detail::swizzled_tile<HeadWidth>;
  static constexpr int max_calls = 8 * Halves;

  __device__ __forceinline__ advance_tiles(const advance_tensor_params& pass, unsigned char* shared)
      : pass_{pass},
        first_call_{static_cast<int>(blockIdx.y) * max_calls},
        num_calls_{(min)(pass.num_calls - first_call_, max_calls)},
        at_{static_cast<int>(blockDim.x / 32), Stages, (min)(pass.num_calls, max_calls),
            pass.num_heads, pass.positions_per_block},
        shared_{shared},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4},
        first_{std::int64_t{blockIdx.x} * pass.positions_per_block},
        stages_{shared + static_cast<int>(threadIdx.x / 32) * Stages * layout::stage_bytes}
  {
    const std::int64_t rest = pass.num_positions - first_;
    count_ = static_cast<int>(rest < pass.positions_per_block ? rest : pass.positions_per_block);
    next_.start(threadIdx.x / 32, pass.num_heads);
    next_row_ = states_in_tiles() ? -1 : 0;
  }

  //! Reads parameters, and asks for the new row to be brought into the L2 cache: before the kernels
  //! in front have ended. Vector v of call j lies at vector v ^ 4*(j % 2): the same vectors of two
  //! calls are in different banks.
  __device__ __forceinline__ void prepare()
  {
    const int vectors = pass_.num_heads * steps * 4;
    for (int j = threadIdx.x / 32; j < num_calls_; j += blockDim.x / 32) {
      const auto* const image =
          reinterpret_cast<const uint4*>(pass_.queries.image(pass_.first_call + first_call_ + j));
      const std::uint32_t to = detail::shared_address(shared_) + at_.queries + j * vectors * 16;
      for (int v = lane_; v < vectors; v += 32) {
        detail::copy_async(to + (v ^ j % 2 * 4) * 16, image + v);
      }
    }
    detail::end_copy_group();
    if (pass_.has_new_row && threadIdx.x < count_) {
      detail::prefetch_to_l2(pass_.rows + (pass_.num_rows - 1) * pass_.row_stride +
                                 (first_ + threadIdx.x) * pass_.position_stride,
                             static_cast<int>(pass_.width) * 2);
    }
  }

  __device__ __forceinline__ void run()
  {
#pragma unroll 1
    for (int stage = 0; stage < Stages; ++stage) { copy_next(stage); }
    if (pass_.has_new_row) { sum_new_squares(); }
    detail::wait_for_copy_groups<Stages>();
    __syncthreads();
    if (pass_.has_new_row) {
      find_new_inverse_rms();
      __syncthreads();
    }
    int stage = 0;
    unit at;
    at.start(threadIdx.x / 32, pass_.num_heads);
#pragma unroll 1
    for (; at.position < count_; at.step(blockDim.x / 32, pass_.num_heads)) {
      start(at, stage);
#pragma unroll 1
      for (int first = 0; first < pass_.num_rows; first += 16) {
        detail::wait_for_copy_groups<Stages - 1>();
        const bool last = first + 16 >= pass_.num_rows;
        if (last && pass_.has_new_row && lane_ == 0) {
          scalars(stage)[(pass_.num_rows - 1) % 16] = new_inverse_rms()[at.position];
        }
        __syncwarp();
        add_tile(at.head, stage, pass_.num_rows - first);
        __syncwarp();
        if (last) { finish(at, stage); }
        copy_next(stage);
        stage = stage + 1 == Stages ? 0 : stage + 1;
      }
    }
  }

private:
  static constexpr int steps = HeadWidth / 16;

  //! A head of a position, both counted within the block.
  struct unit
  {
    int position;
    int head;

    __device__ __forceinline__ void start(int index, int num_heads)
    {
      position = index / num_heads;
      head = index % num_heads;
    }
    __device__ __forceinline__ void step(int count, int num_heads)
    {
      head += count;
      while (head >= num_heads) {
        head -= num_heads;
        ++position;
      }
    }
  };

  [[nodiscard]] __device__ __forceinline__ bool states_in_tiles() const
  {
    return sizeof(State) == 2 && pass_.kept;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t address(int stage) const
  {
    return detail::shared_address(stages_) + stage * layout::stage_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ float* scalars(int stage) const
  {
    return reinterpret_cast<float*>(stages_ + stage * layout::stage_bytes + layout::tile_bytes);
  }
  [[nodiscard]] __device__ __forceinline__ float* new_inverse_rms() const
  {
    return reinterpret_cast<float*>(shared_ + at_.inverse_rms);
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index(int call, const unit& at) const
  {
    return ((first_call_ + call) * pass_.num_positions + first_ + at.position) * pass_.num_heads +
           at.head;
  }
  [[nodiscard]] __device__ __forceinline__ State* state_of(int call, const unit& at) const
  {
    return static_cast<State*>(pass_.states) + (first_call_ + call) * pass_.slot_stride +
           (first_ + at.position) * pass_.width + at.head * HeadWidth;
  }
  [[nodiscard]] __device__ __forceinline__ State* mix_of(const unit& at) const
  {
    return static_cast<State*>(pass_.mix) + (first_ + at.position) * pass_.mix_stride +
           at.head * HeadWidth;
  }
  [[nodiscard]] __device__ __forceinline__ bool is_finished(int call) const
  {
    return pass_.finishes && first_call_ + call == 0;
  }
  //! Call `half`*8 + i has a number for each i, which lanes 4*i hold: those of calls 2q, 2q+1.
  [[nodiscard]] __device__ __forceinline__ float2 to_columns(float of_call) const
  {
    return make_float2(__shfl_sync(0xffffffffu, of_call, quad_ * 8),
                       __shfl_sync(0xffffffffu, of_call, quad_ * 8 + 4));
  }

  //! Starts the copies of the next tile of this warp into a stage, as one group: the states of a
  //! unit, then its rows.
  __device__ __forceinline__ void copy_next(int stage)
  {
    if (next_.position < count_) {
      const std::int64_t position = first_ + next_.position;
      if (next_row_ < 0) {
        copy_tile(stage, reinterpret_cast<const bfloat16*>(state_of(0, next_)), pass_.slot_stride,
                  num_calls_);
        if (lane_ < num_calls_) {
          detail::copy_async_4(scalars(stage) + lane_, pass_.state_lse + head_index(lane_, next_));
        }
        next_row_ = 0;
      }
      else {
        const int rest = pass_.num_rows - next_row_;
        copy_tile(stage,
                  pass_.rows + next_row_ * pass_.row_stride + position * pass_.position_stride +
                      next_.head * HeadWidth,
                  pass_.row_stride, rest);
        if (lane_ < (min)(rest - (pass_.has_new_row ? 1 : 0), 16)) {
          detail::copy_async_4(
              scalars(stage) + lane_,
              pass_.inverse_rms + (next_row_ + lane_) * pass_.num_positions + position);
        }
        next_row_ += 16;
        if (next_row_ >= pass_.num_rows) {
          next_row_ = states_in_tiles() ? -1 : 0;
          next_.step(blockDim.x / 32, pass_.num_heads);
        }
      }
    }
    detail::end_copy_group();
  }

  //! Lines past `count` become zero: they have no weight, and zero times anything else would not do.
  __device__ __forceinline__ void copy_tile(int stage, const bfloat16* from, std::int64_t stride,
                                            int count) const
  {
    const bfloat16* const first = from + quad_ * 8;
    const std::uint32_t target = address(stage);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = half * 8 + row_;
      const bool exists = line < count;
      const bfloat16* const source = exists ? first + line * stride : first;
#pragma unroll
      for (int u = 0; u < tile::groups; ++u) {
        detail::copy_async_or_zero(target + vector_offset(half, u), source + u * 32, exists);
      }
    }
  }
  //! Of vector 4u + q of line `half`*8 + i.
  [[nodiscard]] __device__ __forceinline__ int vector_offset(int half, int u) const
  {
    constexpr int per_period = tile::period / 4;
    return tile::offset(row_, u % per_period * 4 + quad_) + u / per_period * tile::period * 16 +
           half * 8 * tile::line_bytes;
  }
  //! Of vector 2j + (lane_ / 8 % 2) of line lane_ / 16 * 8 + lane_ % 8: how four 8 x 8 matrices of a
  //! tile's 16 columns are addressed.
  [[nodiscard]] __device__ __forceinline__ int tile_offset(int j) const
  {
    constexpr int per_period = tile::period / 2;
    return tile::offset(lane_ % 8, j % per_period * 2 + lane_ / 8 % 2) +
           lane_ / 16 * 8 * tile::line_bytes + j / per_period * tile::period * 16;
  }
  //! Of vector 4u + (lane_ / 8) of call `half`*8 + lane_ % 8: the same for 32 columns of eight calls.
  [[nodiscard]] __device__ __forceinline__ int state_offset(int half, int u) const
  {
    constexpr int per_period = tile::period / 4;
    return tile::offset(lane_ % 8, u % per_period * 4 + lane_ / 8) +
           u / per_period * tile::period * 16 + half * 8 * tile::line_bytes;
  }

  __device__ __forceinline__ void sum_new_squares();
  __device__ __forceinline__ void find_new_inverse_rms();
  __device__ __forceinline__ void start(const unit& at, int& stage);
  __device__ __forceinline__ void add_tile(int head, int stage, int count);
  __device__ __forceinline__ void weigh(int half, int count, const float (&inverse)[2][2],
                                        float (&logits)[2][4]);
  __device__ __forceinline__ void finish(const unit& at, int stage);

  const advance_tensor_params& pass_;
  int first_call_;  // of this block
  int num_calls_;
  layout at_;
  unsigned char* shared_;
  int lane_;
  int row_;             // i
  int quad_;            // q
  std::int64_t first_;  // position of this block
  int count_;           // of its positions
  unsigned char* stages_;
  unit next_;     // to be copied
  int next_row_;  // below 0: the states
  float mixes_[static_cast<std::size_t>(Halves)][static_cast<std::size_t>(steps)][4];
  float largest_[static_cast<std::size_t>(Halves)];
  float sum_[static_cast<std::size_t>(Halves)];  // of this lane's lines
};

}  // namespace block
MHAR_NAMESPACE_END

#include <mhar/block/detail/advance_tiles_products.cuh>
