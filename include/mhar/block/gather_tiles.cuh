// SPDX-License-Identifier: Apache-2.0
//! A backward pass over many calls: a position's rows lie in shared memory, the calls' gradients
//! pass by in chunks of 16, and everything is a product on tensor cores.
#pragma once

#include <mhar/block/detail/cluster_exchange.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/gather_tiles_layout.cuh>
#include <mhar/block/sweep_tensor_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! One head and a range of positions, in rounds of one position per team. A warp of a team owns
//! eight rows.
//!   1. per chunk of calls: <w, s> and <do, s>, factors, and the rows' gradients, which stay in
//!      registers; no barrier beyond the team's
//!   2. head sums are sent to the other heads' blocks                                     (barrier)
//!   3. dw over all pairs of the round, by the whole block; the sums stay in registers
//!   4. the head sums have come: rows are finished and stored                             (barrier)
//!
//! Threads      32 per warp of a team, at least 256
//! Cluster      the heads
//! Shared       gather_tiles_layout
//! Numerics     calls in chunks of 16; a position's bits do not depend on the number of rows
template <int HeadWidth, int TeamWarps, int Products, class State>
class gather_tiles
{
public:
  using layout = gather_tiles_layout<HeadWidth, State>;

  __device__ __forceinline__ gather_tiles(const gather_tensor_params& pass, unsigned char* shared)
      : pass_{pass},
        at_{pass.num_calls, pass.num_rows, pass.num_heads, pass.num_teams, pass.kept},
        shared_{shared},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4},
        team_{static_cast<int>(threadIdx.x / 32) / TeamWarps},
        warp_{static_cast<int>(threadIdx.x / 32) % TeamWarps},
        head_{static_cast<int>(blockIdx.x)},
        first_{std::int64_t{blockIdx.y} * pass.positions_per_block},
        works_{team_ < pass.num_teams},
        row_lanes_{lane_},
        state_lanes_{lane_},
        query_sums_{}
  {
    const std::int64_t rest = pass.num_positions - first_;
    count_ = static_cast<int>(rest < pass.positions_per_block ? rest : pass.positions_per_block);
    rounds_ = (count_ + pass.num_teams - 1) / pass.num_teams;
  }

  //! Reads parameters only: before the kernels in front have ended.
  __device__ __forceinline__ void prepare();

  __device__ __forceinline__ void run()
  {
    if (works_) { copy_chunk(0, 0); }
    detail::wait_for_cluster();
    __syncthreads();
    int stage = 0;
    for (int round = 0; round < rounds_; ++round) {
      float sums[static_cast<std::size_t>(HeadWidth / 16)]
                [4];  // columns row_, row_ + 8 of 16 for rows 2q, 2q + 1
#pragma unroll
      for (auto& sum : sums) { sum[0] = sum[1] = sum[2] = sum[3] = 0; }
      if (works_) {
        float head_sums[2] = {0, 0};
        for (int chunk = 0; chunk * 16 < pass_.num_calls; ++chunk) {
          detail::wait_for_copy_groups<0>();
          synchronize_team();
          const bool last = (chunk + 1) * 16 >= pass_.num_calls;
          copy_chunk(last ? round + 1 : round, last ? 0 : chunk + 1, stage ^ 1);
          if (has_position(round)) { add_chunk(round, chunk, stage, sums, head_sums); }
          else if (chunk == 0) {
            clear_factors();
          }
          stage ^= 1;
        }
        send_head_sums(round, head_sums);
      }
      __syncthreads();
      add_to_queries(round);
      if (works_) { finish(round, sums); }
      __syncthreads();
    }
    store_query_sums();
  }

private:
  static constexpr int row_bytes = detail::tile_row_bytes<bfloat16, HeadWidth>;
  static constexpr int state_bytes = detail::tile_row_bytes<State, HeadWidth>;
  static constexpr int column_tiles = HeadWidth / 16;

  [[nodiscard]] __device__ __forceinline__ unsigned char* team_memory() const
  {
    return shared_ + at_.teams + team_ * at_.team_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ unsigned char* rows_of(int round) const
  {
    return team_memory() + round % 2 * at_.row_set;
  }
  [[nodiscard]] __device__ __forceinline__ unsigned char* states_of(int round) const
  {
    return team_memory() + at_.states + (pass_.kept ? round % 2 * at_.state_set : 0);
  }
  //! lse and D of the calls, inverse rms and kept head sums of the rows.
  [[nodiscard]] __device__ __forceinline__ float* scalars_of(int round) const
  {
    return reinterpret_cast<float*>(team_memory() + at_.scalars + round % 2 * at_.scalar_set);
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t exchange_of(int round) const
  {
    return detail::shared_address(shared_ + at_.exchanges + round % 2 * 8);
  }
  [[nodiscard]] __device__ __forceinline__ float* sent_sums(int round, int head) const
  {
    return reinterpret_cast<float*>(shared_ + at_.head_sums) +
           (round % 2 * pass_.num_heads + head) * pass_.num_teams * pass_.num_rows;
  }
  [[nodiscard]] __device__ __forceinline__ bfloat16* factors_of(int pair) const
  {
    return reinterpret_cast<bfloat16*>(shared_ + at_.factors) + pair * at_.factor_stride;
  }
  [[nodiscard]] __device__ __forceinline__ int low_factors() const
  {
    return at_.pairs * at_.factor_stride;
  }

  [[nodiscard]] __device__ __forceinline__ int position_in_block(int round) const
  {
    return round * pass_.num_teams + team_;
  }
  [[nodiscard]] __device__ __forceinline__ bool has_position(int round) const
  {
    return position_in_block(round) < count_;
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index(int call,
                                                                   std::int64_t position) const
  {
    return (call * pass_.num_positions + position) * pass_.num_heads + head_;
  }
  [[nodiscard]] __device__ __forceinline__ State* state_of(int m, std::int64_t position) const
  {
    return static_cast<State*>(pass_.states) + m * pass_.slot_stride + position * pass_.width +
           head_ * HeadWidth;
  }
  __device__ __forceinline__ void synchronize_team() const
  {
    if constexpr (TeamWarps == 1) { __syncwarp(); }
    else {
      asm volatile("bar.sync %0, %1;" ::"r"(team_ + 1), "n"(TeamWarps * 32) : "memory");
    }
  }

  // Copies and sums between blocks (detail/gather_tiles_copies.cuh).
  __device__ __forceinline__ void copy_chunk(int round, int chunk, int stage = 0);
  __device__ __forceinline__ void copy_round(int round, std::int64_t position);
  __device__ __forceinline__ void clear_factors();
  __device__ __forceinline__ void send_head_sums(int round, float (&head_sums)[2]);
  [[nodiscard]] __device__ __forceinline__ float total_head_sum(int round, int m) const;
  __device__ __forceinline__ void finish(
      int round, float (&sums)[static_cast<std::size_t>(HeadWidth / 16)][4]);
  __device__ __forceinline__ void store_rows(std::int64_t position,
                                             const unsigned char* states) const;
  __device__ __forceinline__ void store_query_sums();

  // Products (detail/gather_tiles_products.cuh).
  __device__ __forceinline__ float newest_dot(int round, int stage, std::int64_t position) const;
  __device__ __forceinline__ void add_chunk(
      int round, int chunk, int stage, float (&sums)[static_cast<std::size_t>(HeadWidth / 16)][4],
      float (&head_sums)[2]);
  __device__ __forceinline__ void multiply(int round, int chunk, const unsigned char* calls,
                                           float (&scores)[2][4], float (&products)[4]) const;
  __device__ __forceinline__ void add_to_queries(int round);

  const gather_tensor_params& pass_;
  layout at_;
  unsigned char* shared_;
  int lane_;
  int row_;   // i
  int quad_;  // q
  int team_;
  int warp_;  // of the team: rows 8*warp_ ... + 7
  int head_;
  std::int64_t first_;  // position of this block
  int count_;           // of its positions
  int rounds_;
  bool works_;
  detail::tile_lanes<bfloat16, HeadWidth> row_lanes_;
  detail::tile_lanes<State, HeadWidth> state_lanes_;
  float newest_dot_ = 0;  // D of the first call at this round's position
  float query_sums_[static_cast<std::size_t>(Products)][4];  // of this warp's tiles of dw
};

}  // namespace block
MHAR_NAMESPACE_END

#include <mhar/block/detail/gather_tiles_copies.cuh>
#include <mhar/block/detail/gather_tiles_products.cuh>
