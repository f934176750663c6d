// SPDX-License-Identifier: Apache-2.0
//! A forward pass over many rows: a position's rows lie in shared memory, logits and mixes are
//! products on tensor cores.
#pragma once

#include <mhar/block/advance_tiles_layout.cuh>
#include <mhar/block/detail/cluster_exchange.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/sweep_tensor_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! One head and a range of positions. A team of warps owns a position at a time and every warp of
//! it eight calls; teams share nothing but the queries, so there is no barrier between positions.
//! The squares of a new row are summed over the heads through the cluster, while the first rows are
//! on their way.
//!
//! Eight calls are one operand: their high parts in rows 0 to 7, the low ones in rows 8 to 15. The
//! logits leave the product in the layout in which the weights enter the next one.
//!
//! Threads      32 per warp of a team
//! Cluster      the heads, when a row is new
//! Shared       advance_tiles_layout
//! Numerics     rows in chunks of 16; a position's bits do not depend on the number of calls
template <int HeadWidth, int Chunks, int TeamWarps, class State>
class advance_tiles
{
public:
  using layout = advance_tiles_layout<HeadWidth, State>;

  __device__ __forceinline__ advance_tiles(const advance_tensor_params& pass, unsigned char* shared)
      : pass_{pass},
        at_{pass.num_calls, pass.num_rows, pass.num_heads, pass.positions_per_block,
            pass.num_teams * pass.buffers_per_team},
        shared_{shared},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4},
        team_{static_cast<int>(threadIdx.x / 32) / TeamWarps},
        warp_{static_cast<int>(threadIdx.x / 32) % TeamWarps},
        head_{static_cast<int>(blockIdx.x)},
        first_{std::int64_t{blockIdx.y} * pass.positions_per_block},
        row_lanes_{lane_},
        state_lanes_{lane_}
  {
    const std::int64_t rest = pass.num_positions - first_;
    count_ = static_cast<int>(rest < pass.positions_per_block ? rest : pass.positions_per_block);
  }

  //! Reads parameters only: before the kernels in front have ended.
  __device__ __forceinline__ void prepare()
  {
    if (pass_.has_new_row) {
      if (threadIdx.x == 0) {
        detail::start_exchange(exchange());
        detail::expect_bytes(exchange(), 2 * pass_.num_heads * count_ * 4);
      }
      __syncwarp();
      detail::arrive_at_cluster();
    }
    constexpr int vectors = HeadWidth / 8;
    const int calls = (pass_.num_calls + 7) / 8 * 8;
    for (int x = threadIdx.x; x < calls * vectors; x += blockDim.x) {
      const int call = x / vectors;
      const int vector = x % vectors;
      uint4 high = make_uint4(0, 0, 0, 0);
      uint4 low = high;
      if (call < pass_.num_calls) {
        const int column = head_ * HeadWidth + vector * 8;
        high = detail::load_parameters(pass_.queries.high(pass_.first_call + call) + column);
        low = detail::load_parameters(pass_.queries.low(pass_.first_call + call) + column);
      }
      unsigned char* const to = shared_ + call * row_bytes + vector * 16;
      *reinterpret_cast<uint4*>(to) = high;
      *reinterpret_cast<uint4*>(to + at_.low_queries) = low;
    }
  }

  __device__ __forceinline__ void run()
  {
    const bool works = team_ < pass_.num_teams;
    for (int b = 0; works && b < pass_.buffers_per_team; ++b) {
      copy_position(team_ + b * pass_.num_teams, b);
    }
    if (pass_.has_new_row) { find_new_inverse_rms(); }
    __syncthreads();
    int buffer = 0;
    for (int p = team_; works && p < count_; p += pass_.num_teams) {
      if (pass_.buffers_per_team == 2) { detail::wait_for_copy_groups<1>(); }
      else {
        detail::wait_for_copy_groups<0>();
      }
      synchronize_team();
      for (int first = warp_ * 8; first < pass_.num_calls; first += TeamWarps * 8) {
        std::uint32_t weights[static_cast<std::size_t>(Chunks)][4];
        const float carried = find_weights(p, first, buffer_of(buffer), weights);
        combine(first, buffer_of(buffer), weights, carried);
        __syncwarp();
        store(p, first, buffer_of(buffer));
      }
      synchronize_team();
      copy_position(p + pass_.buffers_per_team * pass_.num_teams, buffer);
      buffer ^= pass_.buffers_per_team - 1;
    }
  }

private:
  static constexpr int row_bytes = detail::tile_row_bytes<bfloat16, HeadWidth>;
  static constexpr int state_bytes = detail::tile_row_bytes<State, HeadWidth>;
  static constexpr bool unrolled = Chunks <= 2;

  [[nodiscard]] __device__ __forceinline__ std::uint32_t exchange() const
  {
    return detail::shared_address(shared_ + at_.squares);
  }
  [[nodiscard]] __device__ __forceinline__ float* squares() const
  {
    return reinterpret_cast<float*>(shared_ + at_.squares + 16);
  }
  [[nodiscard]] __device__ __forceinline__ unsigned char* buffer_of(int index) const
  {
    return shared_ + at_.buffers + (team_ * pass_.buffers_per_team + index) * at_.buffer_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index(int call, int p) const
  {
    return (call * pass_.num_positions + first_ + p) * pass_.num_heads + head_;
  }
  [[nodiscard]] __device__ __forceinline__ State* state_of(int call, int p) const
  {
    return static_cast<State*>(pass_.states) + call * pass_.slot_stride +
           (first_ + p) * pass_.width + head_ * HeadWidth;
  }
  __device__ __forceinline__ void synchronize_team() const
  {
    if constexpr (TeamWarps == 1) { __syncwarp(); }
    else {
      asm volatile("bar.sync %0, %1;" ::"r"(team_ + 1), "n"(TeamWarps * 32) : "memory");
    }
  }

  //! Starts the copies of a position into a buffer, as one group.
  __device__ __forceinline__ void copy_position(int p, int buffer)
  {
    if (p < count_) {
      unsigned char* const to = buffer_of(buffer);
      const std::int64_t position = first_ + p;
      detail::copy_tile<bfloat16, HeadWidth>(
          to, pass_.rows + position * pass_.position_stride + head_ * HeadWidth, pass_.row_stride,
          warp_, pass_.num_rows, TeamWarps, row_lanes_);
      auto* const scalars = reinterpret_cast<float*>(to + at_.scalars);
      if (pass_.kept) {
        detail::copy_tile<State, HeadWidth>(to + at_.states, state_of(0, p), pass_.slot_stride,
                                            warp_, pass_.num_calls, TeamWarps, state_lanes_);
        for (int j = lane_; warp_ == 0 && j < pass_.num_calls; j += 32) {
          detail::copy_async_4(scalars + pass_.num_rows + j, pass_.state_lse + head_index(j, p));
        }
      }
      const int known = pass_.num_rows - (pass_.has_new_row ? 1 : 0);
      for (int n = lane_; warp_ == TeamWarps - 1 && n < known; n += 32) {
        detail::copy_async_4(scalars + n, pass_.inverse_rms + n * pass_.num_positions + position);
      }
    }
    detail::end_copy_group();
  }

  //! Every warp sums the squares of four positions at a time and sends them to all heads' blocks.
  __device__ __forceinline__ void find_new_inverse_rms()
  {
    constexpr int vectors = HeadWidth / 8;
    const int warps = blockDim.x / 32;
    const int stride = (pass_.num_heads + 1) * pass_.positions_per_block;
    const bfloat16* const row =
        pass_.rows + (pass_.num_rows - 1) * pass_.row_stride + head_ * HeadWidth;
    detail::wait_for_cluster();
    for (int start = threadIdx.x / 32; start < count_; start += 4 * warps) {
      uint4 values[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int p = start + x * warps;
        values[x] = make_uint4(0, 0, 0, 0);
        if (p < count_ && lane_ < vectors) {
          values[x] = __ldcg(
              reinterpret_cast<const uint4*>(row + (first_ + p) * pass_.position_stride) + lane_);
        }
      }
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int p = start + x * warps;
        float sum = detail::add_squares(values[x], 1.0f, 0.0f);
        float scaled = detail::add_squares(values[x], thread::overflow_scale<float>, 0.0f);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, distance);
          scaled += __shfl_xor_sync(0xffffffffu, scaled, distance);
        }
        if (p < count_ && lane_ < pass_.num_heads) {
          float* const place = squares() + (head_ + 1) * pass_.positions_per_block + p;
          detail::send(detail::shared_address(place), exchange(), lane_, sum);
          detail::send(detail::shared_address(place + stride), exchange(), lane_, scaled);
        }
      }
    }
    detail::wait_for_bytes(exchange(), 0);
    for (int p = threadIdx.x; p < count_; p += blockDim.x) {
      float sum = 0;
      float scaled = 0;
      for (int h = 1; h <= pass_.num_heads; ++h) {
        sum += squares()[h * pass_.positions_per_block + p];
        scaled += squares()[stride + h * pass_.positions_per_block + p];
      }
      const float inverse = detail::row_inverse_rms(sum, scaled, pass_.inverse_width, pass_.eps);
      squares()[p] = inverse;
      if (head_ == 0) {
        pass_.inverse_rms[(pass_.num_rows - 1) * pass_.num_positions + first_ + p] = inverse;
      }
    }
  }

  //! Logits and softmax of calls [first, first + 8) at a position. The weights come as the first
  //! operand of the mixes; the kept state's weight of call first + row_ is the answer.
  __device__ __forceinline__ float find_weights(
      int p, int first, unsigned char* buffer,
      std::uint32_t (&weights)[static_cast<std::size_t>(Chunks)][4]);

  //! Mixes of calls [first, first + 8), into the places of their states.
  __device__ __forceinline__ void combine(
      int first, unsigned char* buffer,
      const std::uint32_t (&weights)[static_cast<std::size_t>(Chunks)][4], float carried);

  //! Two columns: the kept ones with their weight, plus the new ones, in place.
  __device__ __forceinline__ void add_state(unsigned char* place, float first, float second,
                                            float carried) const;

  //! Writes the mixes of calls [first, first + 8) to their slots, and a finished one to y.
  __device__ __forceinline__ void store(int p, int first, const unsigned char* buffer) const
  {
    using shape = detail::tile_lanes<State, HeadWidth>;
    const int end = (min)(first + 8, pass_.num_calls);
    for (int call = first + state_lanes_.row; call < end; call += shape::rows) {
#pragma unroll
      for (int round = 0; round < shape::rounds; ++round) {
        if (!state_lanes_.has(round)) { continue; }
        const int vector = state_lanes_.vector + round * 32;
        const uint4 values =
            *reinterpret_cast<const uint4*>(buffer + at_.states + call * state_bytes + vector * 16);
        if (call > 0 || !pass_.finishes) {
          detail::store_16_bytes(state_of(call, p) + vector * shape::elements, values);
          continue;
        }
        bfloat16* const y =
            pass_.y + (first_ + p) * pass_.y_stride + head_ * HeadWidth + vector * shape::elements;
        if constexpr (sizeof(State) == 2) { detail::store_16_bytes(y, values); }
        else {
          detail::store_rounded(y, values);
        }
      }
    }
  }

  const advance_tensor_params& pass_;
  layout at_;
  unsigned char* shared_;
  int lane_;
  int row_;   // i: a call
  int quad_;  // q
  int team_;  // those beyond the last only help at the start
  int warp_;  // of the team
  int head_;
  std::int64_t first_;  // position of this block
  int count_;           // of its positions
  detail::tile_lanes<bfloat16, HeadWidth> row_lanes_;
  detail::tile_lanes<State, HeadWidth> state_lanes_;
};

}  // namespace block
MHAR_NAMESPACE_END

#include <mhar/block/detail/advance_tiles_products.cuh>
