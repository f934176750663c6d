// SPDX-License-Identifier: Apache-2.0
//! What gather_tiles moves: rows and calls into shared memory, head sums between blocks, gradients
//! out.
#pragma once

#include <mhar/block/gather_tiles.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::prepare()
{
  if (threadIdx.x == 0) {
    detail::start_exchange(exchange_of(0));
    detail::start_exchange(exchange_of(1));
  }
  __syncwarp();
  detail::arrive_at_cluster();
  constexpr int vectors = HeadWidth / 8;
  for (int x = threadIdx.x; x < at_.calls * vectors; x += blockDim.x) {
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
  auto* const gates = reinterpret_cast<float*>(shared_ + at_.gates);
  for (int c = threadIdx.x; c < at_.calls; c += blockDim.x) {
    gates[c] = c < pass_.num_calls ? pass_.gate[c] : 0.0f;
    gates[at_.calls + c] = c < pass_.num_calls ? pass_.logit_gate[c] : 0.0f;
  }
  // Pairs beyond the last never get factors of their own.
  auto* const factors = reinterpret_cast<std::uint32_t*>(factors_of(0));
  for (int x = threadIdx.x; x < low_factors(); x += blockDim.x) { factors[x] = 0; }
  auto* const places = reinterpret_cast<int*>(shared_ + at_.row_places);
  for (int x = threadIdx.x; x < at_.pairs; x += blockDim.x) {
    const int pair = (min)(x, pass_.num_teams * pass_.num_rows - 1);
    const int team = pair / pass_.num_rows;
    places[x] = at_.teams + team * at_.team_bytes + (pair - team * pass_.num_rows) * row_bytes;
  }
}

//! Starts the copies of a chunk of calls, and of everything else of a round with its first chunk.
template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::copy_chunk(
    int round, int chunk, int stage)
{
  if (round < rounds_ && has_position(round)) {
    const std::int64_t position = first_ + position_in_block(round);
    const int first = chunk * 16;
    detail::copy_tile<bfloat16, HeadWidth>(
        team_memory() + at_.chunks + stage * at_.chunk,
        pass_.call_gradients + first * pass_.call_stride + position * pass_.call_position_stride +
            head_ * HeadWidth,
        pass_.call_stride, warp_, (min)(16, pass_.num_calls - first), TeamWarps, row_lanes_);
    if (chunk == 0) { copy_round(round, position); }
  }
  else if (round < rounds_ && chunk == 0 && round < 2) {
    // Rows without factors still enter the product: they must be finite.
    for (int x = lane_ + warp_ * 32; x < at_.row_set / 16; x += 32 * TeamWarps) {
      reinterpret_cast<uint4*>(rows_of(round))[x] = make_uint4(0, 0, 0, 0);
    }
  }
  detail::end_copy_group();
}

template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::copy_round(
    int round, std::int64_t position)
{
  const std::int64_t column = head_ * HeadWidth;
  detail::copy_tile<bfloat16, HeadWidth>(
      rows_of(round), pass_.rows + position * pass_.position_stride + column, pass_.row_stride,
      warp_, pass_.num_rows, TeamWarps, row_lanes_);
  if (pass_.mix != nullptr && warp_ == 0) {
    detail::copy_tile<bfloat16, HeadWidth>(
        team_memory() + at_.mixes + round % 2 * row_bytes,
        pass_.mix + position * pass_.mix_position_stride + column, 0, 0, 1, 1, row_lanes_);
  }
  if (pass_.kept) {
    detail::copy_tile<State, HeadWidth>(states_of(round), state_of(0, position), pass_.slot_stride,
                                        warp_, pass_.num_rows, TeamWarps, state_lanes_);
  }
  float* const scalars = scalars_of(round);
  for (int c = lane_; warp_ == 0 && c < pass_.num_calls; c += 32) {
    detail::copy_async_4(scalars + c, pass_.lse + head_index(c, position));
    if (c > 0 || pass_.mix == nullptr) {
      detail::copy_async_4(scalars + pass_.num_calls + c, pass_.dot + head_index(c, position));
    }
  }
  float* const of_rows = scalars + 2 * pass_.num_calls;
  for (int m = lane_; warp_ == TeamWarps - 1 && m < pass_.num_rows; m += 32) {
    detail::copy_async_4(of_rows + m, pass_.inverse_rms + position - m * pass_.num_positions);
    if (pass_.kept) {
      detail::copy_async_4(of_rows + pass_.num_rows + m,
                           pass_.head_sums + m * pass_.num_positions + position);
    }
  }
}

//! A team without a position adds nothing to dw.
template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::clear_factors()
{
  const int m = warp_ * 8 + row_;
  if (m >= pass_.num_rows) { return; }
  auto* const high = reinterpret_cast<std::uint32_t*>(factors_of(team_ * pass_.num_rows + m));
  for (int c = quad_; c < at_.calls / 2; c += 4) {
    high[c] = 0;
    high[low_factors() / 2 + c] = 0;
  }
}

//! Block 0 of the cluster gets the sums of all rows, the others of the one that is finished.
template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::send_head_sums(
    int round, float (&head_sums)[2])
{
#pragma unroll
  for (float& sum : head_sums) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
  }
  const float top = __shfl_sync(0xffffffffu, head_sums[0], 0);
  float* const places = sent_sums(round, head_) + team_ * pass_.num_rows;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int m = warp_ * 8 + quad_ * 2 + e;
    if (row_ == 0 && m < pass_.num_rows) {
      detail::send(detail::shared_address(places + m), exchange_of(round), 0, head_sums[e]);
    }
  }
  if (warp_ == 0 && pass_.finishes && lane_ > 0 && lane_ < pass_.num_heads) {
    detail::send(detail::shared_address(places), exchange_of(round), lane_, top);
  }
  if (threadIdx.x == 0) {
    const int rows = head_ == 0 ? pass_.num_rows : pass_.finishes ? 1 : 0;
    detail::expect_bytes(exchange_of(round), pass_.num_heads * pass_.num_teams * rows * 4);
  }
}

template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ float
gather_tiles<HeadWidth, TeamWarps, Products, State>::total_head_sum(int round, int m) const
{
  float sum = pass_.kept ? scalars_of(round)[2 * pass_.num_calls + pass_.num_rows + m] : 0.0f;
  for (int h = 0; h < pass_.num_heads; ++h) {
    sum += sent_sums(round, h)[team_ * pass_.num_rows + m];
  }
  return sum;
}

//! Kept gradients are added, the top row gets the norm's part, and all go out through the states'
//! place in shared memory.
template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::finish(
    int round, float (&sums)[static_cast<std::size_t>(HeadWidth / 16)][4])
{
  detail::wait_for_bytes(exchange_of(round), round / 2 % 2);
  if (!has_position(round)) { return; }
  const std::int64_t position = first_ + position_in_block(round);
  const int m = warp_ * 8 + lane_;
  if (head_ == 0 && lane_ < 8 && m < pass_.num_rows && (m > 0 || !pass_.finishes)) {
    pass_.head_sums[m * pass_.num_positions + position] = total_head_sum(round, m);
  }
  const float inverse = scalars_of(round)[2 * pass_.num_calls];
  float correction = 0;  // other lanes than the top row's add nothing
  if (pass_.finishes && warp_ == 0 && quad_ == 0) {
    correction = -inverse * total_head_sum(round, 0) * pass_.inverse_width;
  }
  unsigned char* const states = states_of(round);
  const int loaded = (min)(warp_ * 8 + lane_ % 8, pass_.num_rows - 1);
  const std::uint32_t kept = detail::shared_address(states + loaded * state_bytes + lane_ / 8 * 16);
  const std::uint32_t rows =
      detail::shared_address(rows_of(round) + loaded * row_bytes + lane_ / 8 * 16);
  const int even = warp_ * 8 + quad_ * 2;
#pragma unroll
  for (int group = 0; group < HeadWidth / 32; ++group) {
    if (pass_.kept && sizeof(State) == 2) {
      std::uint32_t values[4];
      detail::load_transposed(values, kept + group * 64);
#pragma unroll
      for (int y = 0; y < 4; ++y) {
        float* const sum = &sums[2 * group + y / 2][y % 2 * 2];
        sum[0] += detail::first_of(values[y]);
        sum[1] += detail::second_of(values[y]);
      }
    }
    if (warp_ == 0 && pass_.finishes) {
      std::uint32_t values[4];
      detail::load_transposed(values, rows + group * 64);
#pragma unroll
      for (int y = 0; y < 4; ++y) {
        float* const sum = &sums[2 * group + y / 2][y % 2 * 2];
        sum[0] = fmaf(correction, inverse * detail::first_of(values[y]), sum[0]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int y = 0; y < 4; ++y) {
      const float* const sum = &sums[2 * group + y / 2][y % 2 * 2];
      if constexpr (sizeof(State) == 2) {
        const std::uint32_t pair = detail::transpose(detail::make_pair(sum[0], sum[1]));
        if (warp_ * 8 + row_ < pass_.num_rows) {
          *reinterpret_cast<std::uint32_t*>(states + (warp_ * 8 + row_) * state_bytes + group * 64 +
                                            y * 16 + quad_ * 4) = pair;
        }
      }
      else {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (even + e >= pass_.num_rows) { continue; }
          auto* const place = reinterpret_cast<float*>(states + (even + e) * state_bytes) +
                              group * 32 + y * 8 + row_;
          *place = pass_.kept ? *place + sum[e] : sum[e];
        }
      }
    }
  }
  __syncwarp();
  store_rows(position, states);
}

template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void gather_tiles<HeadWidth, TeamWarps, Products, State>::store_rows(
    std::int64_t position, const unsigned char* states) const
{
  using shape = detail::tile_lanes<State, HeadWidth>;
  const int end = (min)(warp_ * 8 + 8, pass_.num_rows);
  for (int m = warp_ * 8 + state_lanes_.row; m < end; m += shape::rows) {
#pragma unroll
    for (int r = 0; r < shape::rounds; ++r) {
      if (!state_lanes_.has(r)) { continue; }
      const int vector = state_lanes_.vector + r * 32;
      const uint4 values = *reinterpret_cast<const uint4*>(states + m * state_bytes + vector * 16);
      if (m > 0 || !pass_.finishes) {
        detail::store_16_bytes(state_of(m, position) + vector * shape::elements, values);
        continue;
      }
      if (pass_.row_gradient == nullptr) { continue; }
      bfloat16* const to = pass_.row_gradient + position * pass_.gradient_stride +
                           head_ * HeadWidth + vector * shape::elements;
      if constexpr (sizeof(State) == 2) { detail::store_16_bytes(to, values); }
      else {
        detail::store_rounded(to, values);
      }
    }
  }
}

//! Adds this block's share of dw to chunk blockIdx.y.
template <int HeadWidth, int TeamWarps, int Products, class State>
__device__ __forceinline__ void
gather_tiles<HeadWidth, TeamWarps, Products, State>::store_query_sums()
{
  if (pass_.query_sums == nullptr) { return; }
  const int tiles = (pass_.num_calls + 7) / 8 * column_tiles;
#pragma unroll
  for (int x = 0; x < Products; ++x) {
    const int tile = threadIdx.x / 32 + x * (blockDim.x / 32);
    if (tile >= tiles) { continue; }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int call = tile / column_tiles * 8 + quad_ * 2 + e % 2;
      const int column = tile % column_tiles * 16 + row_ + e / 2 * 8;
      if (call < pass_.num_calls) {
        pass_.query_sums[call * pass_.width + blockIdx.y * pass_.chunk_stride + head_ * HeadWidth +
                         column] += query_sums_[x][e];
      }
    }
  }
}

}  // namespace block
MHAR_NAMESPACE_END
