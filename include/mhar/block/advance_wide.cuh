// SPDX-License-Identifier: Apache-2.0
//! A forward pass over wide heads: a warp holds all rows of a position and head, or of a piece of
//! it, in registers, and both products read them from there.
#pragma once

#include <mhar/block/detail/piece_sums.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/detail/wide_parameters.cuh>
#include <mhar/block/sweep_wide_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Teams of warps walk over positions (warp_place). Lane 4*i + q holds columns 8q ... 8q+7 of every
//! 32 of row i, loaded 16 bytes at a time: the second operand of the logits as it is, and of the
//! mixes once 8 x 8 pieces are transposed. Eight calls are the first operand, high parts above low
//! parts; sums come out in the layout in which rows are loaded. Of a split head the next position's
//! rows come in while this one's are used for the last time.
//!
//! Threads      max_threads; of a split head 32 per piece and team
//! Barriers     one, and one over the cluster
//! Shared       shared_bytes
//! Numerics     a position's bits do not depend on the number of calls
template <class T, int Width, int Chunks, class State, bool Split>
class advance_wide
{
public:
  using piece_sums = detail::piece_sums<2 * Chunks, true>;
  static constexpr int max_threads = !Split ? 256 : Chunks == 1 ? 672 : 512;
  //! That registers are shared out for.
  static constexpr int blocks_per_multiprocessor = Split         ? 1
                                                   : Width > 160 ? 3 - Chunks
                                                   : Width > 128 ? 4 - Chunks
                                                                 : 5 - Chunks;

  //! Queries and null sources by eight calls, the first call's mix per warp, sums per team.
  [[nodiscard]] static constexpr int shared_bytes(int num_calls, bool has_null, int teams,
                                                  int pieces, int spread)
  {
    return (has_null ? 2 : 1) * ((num_calls + 7) / 8) * pieces * group_vectors * 16 +
           teams * pieces * Width * 4 + (Split ? teams * piece_sums::bytes(pieces * spread) : 0);
  }

  __device__ __forceinline__ advance_wide(const advance_wide_params<T>& pass, unsigned char* shared)
      : pass_{pass},
        place_{pass.pieces, pass.spread},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4},
        head_{place_.head()},
        column_{std::int64_t{place_.unit()} * Width}
  {
    const int vectors_of_block = num_groups() * place_.pieces * group_vectors;
    queries_ = reinterpret_cast<uint4*>(shared);
    nulls_ = reinterpret_cast<float4*>(shared) + vectors_of_block;
    first_mix_ = reinterpret_cast<float*>(nulls_ + (has_null() ? vectors_of_block : 0));
    exchange_ = detail::shared_address(first_mix_ + blockDim.x / 32 * Width);
    queries_ += place_.piece * num_groups() * group_vectors;
    nulls_ += place_.piece * num_groups() * group_vectors;
    first_mix_ += threadIdx.x / 32 * Width;
  }

  //! After the kernels in front have ended.
  __device__ __forceinline__ void run()
  {
    const int before = place_.piece * num_groups() * group_vectors;
    detail::load_parameters_of_wide_heads<Width>(pass_, place_, has_null(), queries_ - before,
                                                 nulls_ - before);
    if constexpr (Split) {
      if (place_.piece == 0 && lane_ == 0) { piece_sums{place_, exchange_}.start(); }
    }
    __syncthreads();
    if constexpr (Split) {
      detail::arrive_at_cluster();
      detail::wait_for_cluster();
    }
    const float gate = pass_.finishes ? pass_.stage.load_gate() : 1.0f;
    const std::int64_t step = std::int64_t{gridDim.y} * place_.num_teams();
    std::int64_t position =
        pass_.first_position + blockIdx.y * std::int64_t{place_.num_teams()} + place_.team;
    if (Split && position < pass_.last_position) { load_rows(position); }
    for (; position < pass_.last_position; position += step) {
      if constexpr (!Split) { load_rows(position); }
      load_partial(position);
      for (int group = 0; group * 8 < pass_.num_calls; ++group) {
        advance(position, group, position + step);
      }
      if (pass_.finishes) { finish(position, gate); }
    }
  }

private:
  static constexpr int vectors = Width / 32;
  static constexpr float mix_scale = detail::operand_scales<T>::mix;
  static constexpr int group_vectors = vectors * 64;  // 16 bytes each, of eight calls
  static constexpr int finish_vectors = (Width + 255) / 256;

  [[nodiscard]] __device__ __forceinline__ int num_groups() const
  {
    return (pass_.num_calls + 7) / 8;
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index(int call,
                                                                   std::int64_t position) const
  {
    return (call * pass_.num_positions + position) * pass_.num_heads + head_;
  }
  [[nodiscard]] __device__ __forceinline__ bool has_null() const
  {
    return pass_.null_source != nullptr;
  }

  __device__ __forceinline__ void load_rows(std::int64_t position)
  {
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const T* const row = row_of(position, c);
#pragma unroll
      for (int u = 0; u < vectors; ++u) { load_row(row, c, u); }
    }
    load_inverse(position);
  }

  //! This lane's row of a chunk.
  [[nodiscard]] __device__ __forceinline__ const T* row_of(std::int64_t position, int c) const
  {
    return pass_.rows + (c * 8 + row_) * pass_.row_stride + position * pass_.position_stride +
           column_ + quad_ * 8;
  }
  //! From a pointer that is found once: found for every vector it costs instructions.
  __device__ __forceinline__ void load_row(const T* row, int c, int u)
  {
    rows_[c][u] =
        c * 8 + row_ < pass_.num_rows ? detail::load_vector(row + u * 32) : make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ void load_inverse(std::int64_t position)
  {
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int n = c * 8 + quad_ * 2 + e;
        inverse_[c][e] =
            n < pass_.num_rows ? pass_.inverse_rms[n * pass_.num_positions + position] : 0.0f;
      }
    }
  }

  __device__ __forceinline__ void load_partial(std::int64_t position)
  {
    if (!pass_.finishes) { return; }
#pragma unroll
    for (int v = 0; v < finish_vectors; ++v) {
      partial_[v] = make_uint4(0, 0, 0, 0);
      if (pass_.stage.partial.is_vector && v * 256 + lane_ * 8 < Width) {
        const const_matrix& partial = pass_.stage.partial.matrix;
        partial_[v] =
            detail::load_vector(static_cast<const T*>(partial.data) +
                                position * partial.position_stride + column_ + v * 256 + lane_ * 8);
      }
    }
  }

  //! Lane 4*i + q: logits of call i, rows 2q and 2q+1 of every chunk; `carried` of the first piece.
  __device__ __forceinline__ void find_logits(int group,
                                              float (&logits)[static_cast<std::size_t>(Chunks)][2],
                                              float& carried)
  {
    float sums[static_cast<std::size_t>(Chunks)][4] = {};
    const uint4* const queries = queries_ + group * group_vectors + lane_;
#pragma unroll
    for (int t = 0; t < 2 * vectors; ++t) {
      const uint4 a = queries[t * 32];
#pragma unroll
      for (int c = 0; c < Chunks; ++c) {
        detail::multiply_add_16<T>(sums[c], a.x, a.y, a.z, a.w,
                                   detail::pair_of(rows_[c][t / 2], t % 2 * 2),
                                   detail::pair_of(rows_[c][t / 2], t % 2 * 2 + 1));
      }
    }
    float added[static_cast<std::size_t>(2 * Chunks)];
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      added[2 * c] = detail::join_parts<T>(sums[c], 0);
      added[2 * c + 1] = detail::join_parts<T>(sums[c], 1);
    }
    if constexpr (Split) {
      const piece_sums exchange{place_, exchange_};
      exchange.send(round_, added, carried);
      carried = exchange.add(round_, added);
      ++round_;
    }
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool known = c * 8 + quad_ * 2 + e < pass_.num_rows;
        logits[c][e] = known ? added[2 * c + e] * inverse_[c][e] : detail::minus_infinity<float>();
      }
    }
  }

  //! What a call's state starts from.
  [[nodiscard]] __device__ __forceinline__ float carried_logit(int call,
                                                               std::int64_t position) const
  {
    if (call < pass_.num_calls && pass_.kept) {
      return pass_.state_lse[head_index(call, position)];
    }
    if (call < pass_.num_calls && has_null()) {
      return pass_.null_logit[std::int64_t{call} * pass_.num_heads + head_];
    }
    return detail::minus_infinity<float>();
  }

  __device__ __forceinline__ void advance(std::int64_t position, int group, std::int64_t next)
  {
    const int call = group * 8 + row_;
    const bool known = call < pass_.num_calls;
    float weights[static_cast<std::size_t>(Chunks)][2];
    float carried = detail::minus_infinity<float>();
    if constexpr (Split) {
      // The piece that will overwrite it is the only one that reads it.
      if (place_.is_first()) { carried = carried_logit(call, position); }
      find_logits(group, weights, carried);
    }
    else {
      find_logits(group, weights, carried);
      carried = carried_logit(call, position);
    }
    float largest = carried;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      largest = fmaxf(largest, fmaxf(weights[c][0], weights[c][1]));
    }
    largest = detail::quad_max(largest);
    const float shift = largest == detail::minus_infinity<float>() ? 0.0f : largest;
    float sum = 0;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        weights[c][e] = detail::exp2_approximate((weights[c][e] - shift) * detail::log2_of_e);
        sum += weights[c][e];
      }
    }
    carried = detail::exp2_approximate((carried - shift) * detail::log2_of_e);
    sum = detail::quad_sum(sum) + carried;
    // A NaN, which compares with nothing, makes the sum one.
    const bool none = sum == 0;
    const float factor = none ? 0.0f : 1.0f / sum;
    carried *= factor;
    const bool is_finished = pass_.finishes && call == 0;
    float* lse = is_finished ? pass_.lse : pass_.state_lse;
    std::int64_t of_position = position;
    if (is_finished && pass_.unfinished != nullptr) {
      lse = pass_.unfinished_lse;
      of_position -= pass_.first_position;
    }
    // Every lane has read the kept one.
    __syncwarp();
    if (quad_ == 0 && known && lse != nullptr && (!Split || place_.is_first())) {
      lse[head_index(call, of_position)] = none ? largest : largest + logf(sum);
    }
    std::uint32_t a[4] = {0, 0, 0, 0};
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const float first = weights[c][0] * factor * mix_scale;
      const float second = weights[c][1] * factor * mix_scale;
      a[2 * c] = detail::make_pair<T>(first, second);
      a[2 * c + 1] = detail::make_low_pair<T>(a[2 * c], first, second);
    }
    combine(position, group, a, carried, next);
  }

  //! Mixes of a group: lane 4*i + q has columns 8q ... 8q+7 of every 32 of call i.
  __device__ __forceinline__ void combine(std::int64_t position, int group,
                                          const std::uint32_t (&a)[4], float carried,
                                          std::int64_t next)
  {
    // The next position comes in while this one is stored.
    const bool ahead = Split && (group + 1) * 8 >= pass_.num_calls && next < pass_.last_position;
    if (ahead) { load_inverse(next); }
    const T* const next_row = row_of(next, 0);
    const int call = group * 8 + row_;
    const bool is_finished = pass_.finishes && call == 0;
    const float4* const nulls = nulls_ + group * group_vectors + lane_;
    State* const state = static_cast<State*>(pass_.states) + call * pass_.slot_stride +
                         position * pass_.width + column_ + quad_ * 8;
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      float values[8];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float sums[4] = {0, 0, 0, 0};
        const std::uint32_t b0 = detail::transpose(detail::pair_of(rows_[0][u], e));
        if constexpr (Chunks == 1) { detail::multiply_add_8<T>(sums, a[0], a[1], b0); }
        else {
          detail::multiply_add_16<T>(sums, a, b0,
                                     detail::transpose(detail::pair_of(rows_[Chunks - 1][u], e)));
        }
        values[2 * e] = (sums[0] + sums[2]) * (1 / mix_scale);
        values[2 * e + 1] = (sums[1] + sums[3]) * (1 / mix_scale);
      }
      if (ahead) {
#pragma unroll
        for (int c = 0; c < Chunks; ++c) { load_row(next_row + c * 8 * pass_.row_stride, c, u); }
      }
      if (has_null()) {
        const float4 first = nulls[2 * u * 32];
        const float4 second = nulls[(2 * u + 1) * 32];
        const float null[8] = {first.x,  first.y,  first.z,  first.w,
                               second.x, second.y, second.z, second.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) { values[j] = fmaf(carried, null[j], values[j]); }
      }
      // No branch around the products: all lanes take part in them.
      if (call < pass_.num_calls) { keep(state + u * 32, u, is_finished, carried, values); }
    }
  }

  //! Adds the kept state and stores eight columns.
  __device__ __forceinline__ void keep(State* state, int u, bool is_finished, float carried,
                                       float (&values)[8])
  {
    if (pass_.kept) {
      float kept[8];
      detail::load_state(state, kept);
#pragma unroll
      for (int j = 0; j < 8; ++j) { values[j] = fmaf(carried, kept[j], values[j]); }
    }
    if (is_finished) { detail::store_vector(first_mix_ + u * 32 + quad_ * 8, values); }
    else {
      detail::store_vector(state, values);
    }
  }

  //! The first call: its mix lies in shared memory, and a lane takes eight columns of 256.
  __device__ __forceinline__ void finish(std::int64_t position, float gate)
  {
    __syncwarp();
#pragma unroll
    for (int v = 0; v < finish_vectors; ++v) {
      const int k = v * 256 + lane_ * 8;
      if (k >= Width) { break; }
      float mix[8];
      float partial[8];
      detail::load_state(first_mix_ + k, mix);
      if (pass_.unfinished != nullptr) {
        const std::int64_t at = (position - pass_.first_position) * pass_.width + column_ + k;
        detail::store_vector(pass_.unfinished + at, mix);
        continue;
      }
      if (pass_.stage.partial.is_vector) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          partial[2 * e] = detail::first_of<T>(detail::pair_of(partial_[v], e));
          partial[2 * e + 1] = detail::second_of<T>(detail::pair_of(partial_[v], e));
        }
      }
      else {
        detail::load_columns(pass_.stage.partial, position, column_ + k, partial);
      }
      detail::finish_columns(pass_.stage, gate, position, column_ + k, mix, partial);
    }
    __syncwarp();
  }

  const advance_wide_params<T>& pass_;
  detail::warp_place<Split> place_;
  int round_ = 0;
  std::uint32_t exchange_;
  int lane_;
  int row_;   // i: a row, or a call
  int quad_;  // q
  int head_;
  std::int64_t column_;
  uint4* queries_;
  float4* nulls_;
  float* first_mix_;
  uint4 rows_[static_cast<std::size_t>(Chunks)][static_cast<std::size_t>(vectors)];
  float inverse_[static_cast<std::size_t>(Chunks)][2];
  uint4 partial_[static_cast<std::size_t>(finish_vectors)];
};

}  // namespace block
MHAR_NAMESPACE_END
