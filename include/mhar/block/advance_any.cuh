// SPDX-License-Identifier: Apache-2.0
//! A forward pass of a sweep as one block computes it, one position after the other: any type,
//! shape, alignment and option.
#pragma once

#include <mhar/block/detail/sweep_values.cuh>
#include <mhar/block/row_pointers.cuh>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! A pass as its kernel reads it. Row 0 of `rows` is row first_row of the sweep; problem.rows is
//! not used.
template <class T, int Capacity>
struct advance_any_params
{
  advance_problem<T> problem;
  row_pointers<T, Capacity> rows;
  accumulate_t<T>* scratch = nullptr;  //!< advance_any::scratch_size elements per block
};

//! Threads      all of the block
//! Barriers     a few per head, two or four per new row
//! Scratch      global memory of the block's own: weights of one head, inverse rms, and the mix of
//!              the first call
//! Numerics     accumulate_t<T>; a logit is a sum over 32 lanes, a mix adds its sources in order
template <class T, int Capacity, int Threads>
class advance_any
{
public:
  using accumulate = accumulate_t<T>;
  using params = advance_any_params<T, Capacity>;
  using block_sum = detail::block_sum<accumulate, Threads>;
  using storage = typename block_sum::storage;

  //! Elements of scratch of one block.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::int64_t scratch_size(std::int64_t width,
                                                                            int members,
                                                                            int range) noexcept
  {
    return width + std::int64_t{members} * (range + 2) + range + 1;
  }

  __device__ advance_any(const params& pass, storage& shared)
      : problem_{pass.problem}, rows_{pass.rows}, sum_of_{shared}
  {
    const shape& extent = problem_.extent;
    stride_ = problem_.num_rows + 1;
    mix_ = pass.scratch +
           blockIdx.x * scratch_size(extent.width, problem_.num_calls, problem_.num_rows);
    weights_ = mix_ + extent.width;
    carried_ = weights_ + std::int64_t{problem_.num_calls} * stride_;
    inverse_ = carried_ + problem_.num_calls;
  }

  //! Positions blockIdx.x, blockIdx.x + gridDim.x, ...
  __device__ void run()
  {
    for (std::int64_t p = blockIdx.x; p < problem_.extent.num_positions; p += gridDim.x) {
      find_inverse_rms(p);
      for (int h = 0; h < problem_.extent.num_heads; ++h) {
        find_logits(p, h);
        __syncthreads();
        find_weights(p, h);
        __syncthreads();
        combine(p, h);
        __syncthreads();
      }
      if (finishes()) { finish(p); }
      __syncthreads();
    }
  }

private:
  static constexpr int num_warps = Threads / 32;

  [[nodiscard]] __device__ bool finishes() const { return problem_.end == pass_end::finish_first; }
  [[nodiscard]] __device__ bool has_private(int member) const
  {
    return member == 0 && problem_.private_row != nullptr;
  }
  //! Row n of the pass; the private one is the last.
  [[nodiscard]] __device__ const T* row_at(int n, std::int64_t position) const
  {
    if (n == problem_.num_rows) {
      return problem_.private_row + position * problem_.private_stride;
    }
    return rows_.at(n, position);
  }

  __device__ void find_inverse_rms(std::int64_t position)
  {
    const shape& extent = problem_.extent;
    const int known = problem_.num_rows - problem_.num_new_rows;
    const int count = problem_.num_rows + (problem_.private_row != nullptr ? 1 : 0);
    for (int n = threadIdx.x; n < known; n += Threads) {
      inverse_[n] =
          problem_.inverse_rms[(problem_.first_row + n) * extent.num_positions + position];
    }
    for (int n = known; n < count; ++n) {
      const T* const row = row_at(n, position);
      const accumulate inverse = detail::block_inverse_rms(
          sum_of_, [row](std::int64_t k) { return widen<accumulate>(row[k]); }, extent.width,
          extent.full_width(), static_cast<accumulate>(problem_.eps));
      if (threadIdx.x == 0) {
        inverse_[n] = inverse;
        accumulate* const kept =
            n < problem_.num_rows
                ? problem_.inverse_rms + (problem_.first_row + n) * extent.num_positions
                : problem_.private_inverse_rms;
        kept[position] = inverse;
      }
    }
    __syncthreads();
  }

  //! One warp per (call, row).
  __device__ void find_logits(std::int64_t position, int head)
  {
    const folded_sites<accumulate>& sites = problem_.sites;
    const std::int64_t width = problem_.extent.head_width();
    const int pairs = problem_.num_calls * stride_;
    for (int pair = threadIdx.x / 32; pair < pairs; pair += num_warps) {
      const int g = pair / stride_;
      const int n = pair - g * stride_;
      if (n == problem_.num_rows && !has_private(g)) { continue; }
      const std::int64_t call = problem_.first_call + g;
      const T* const row = row_at(n, position) + head * width;
      const accumulate* const query = sites.query + call * problem_.extent.width + head * width;
      const accumulate inverse = inverse_[n];
      accumulate logit = detail::warp_dot<accumulate>(
          [query](std::int64_t k) { return query[k]; },
          [&](std::int64_t k) { return detail::key_of(row[k], inverse, sites.rounding); }, width);
      if (sites.rounding == key_rounding::none) { logit *= inverse; }
      if (sites.bias != nullptr) {
        const int entry = n == problem_.num_rows ? problem_.private_bias : problem_.first_row + n;
        logit += sites.bias[call * sites.bias_stride + entry];
      }
      if (threadIdx.x % 32 == 0) { weights_[pair] = logit; }
    }
  }

  //! What a call starts from: its kept state, the null source, or nothing.
  [[nodiscard]] __device__ accumulate carried_logit(int member, std::int64_t position,
                                                    int head) const
  {
    const shape& extent = problem_.extent;
    if (problem_.start == pass_start::kept) {
      const std::int64_t slot = problem_.states.first_slot + member;
      return problem_.states
          .lse[(slot * extent.num_positions + position) * extent.num_heads + head];
    }
    if (problem_.sites.null_source == nullptr) { return detail::minus_infinity<accumulate>(); }
    return problem_.sites
        .null_logit[(problem_.first_call + member) * std::int64_t{extent.num_heads} + head];
  }

  //! One warp per call: logits become weights, and lse is written.
  __device__ void find_weights(std::int64_t position, int head)
  {
    const shape& extent = problem_.extent;
    const int lane = threadIdx.x % 32;
    for (int g = threadIdx.x / 32; g < problem_.num_calls; g += num_warps) {
      accumulate* const weights = weights_ + std::int64_t{g} * stride_;
      const int count = problem_.num_rows + (has_private(g) ? 1 : 0);
      const accumulate carried = carried_logit(g, position, head);
      accumulate largest = carried;
      for (int n = lane; n < count; n += 32) {
        largest = weights[n] > largest ? weights[n] : largest;
      }
      largest = detail::warp_max(largest);
      // Without a logit above -inf, exp(-inf - -inf) would be NaN; a NaN, which compares with
      // nothing, must stay one.
      const accumulate shift =
          largest == detail::minus_infinity<accumulate>() ? accumulate{0} : largest;
      accumulate sum = 0;
      for (int n = lane; n < count; n += 32) {
        const accumulate weight = cuda::std::exp(weights[n] - shift);
        weights[n] = weight;
        sum += weight;
      }
      const accumulate first = cuda::std::exp(carried - shift);
      sum = detail::warp_sum(sum) + first;
      const bool none = sum == 0;
      const accumulate factor = none ? accumulate{0} : accumulate{1} / sum;
      for (int n = lane; n < count; n += 32) { weights[n] *= factor; }
      if (lane != 0) { continue; }
      carried_[g] = first * factor;
      const accumulate lse = none ? largest : largest + cuda::std::log(sum);
      if (finishes() && g == 0) {
        if (problem_.outputs.lse != nullptr) {
          problem_.outputs.lse[position * extent.num_heads + head] = lse;
        }
      }
      else {
        const std::int64_t slot = problem_.states.first_slot + g;
        problem_.states.lse[(slot * extent.num_positions + position) * extent.num_heads + head] =
            lse;
      }
    }
  }

  //! The carried mix of a call at one column, times its weight.
  [[nodiscard]] __device__ accumulate carried_value(int member, std::int64_t position,
                                                    std::int64_t column) const
  {
    const std::int64_t width = problem_.extent.width;
    if (problem_.start == pass_start::kept) {
      const std::int64_t slot = problem_.states.first_slot + member;
      return carried_[member] *
             mhar::load<accumulate>(problem_.states.mix, problem_.states.type,
                                    slot * problem_.states.slot_stride + position * width + column);
    }
    if (problem_.sites.null_source == nullptr) { return 0; }
    return carried_[member] *
           problem_.sites.null_source[(problem_.first_call + member) * width + column];
  }

  __device__ void combine(std::int64_t position, int head)
  {
    const std::int64_t width = problem_.extent.head_width();
    for (int g = 0; g < problem_.num_calls; ++g) {
      const accumulate* const weights = weights_ + std::int64_t{g} * stride_;
      const int count = problem_.num_rows + (has_private(g) ? 1 : 0);
      for (std::int64_t k = threadIdx.x; k < width; k += Threads) {
        const std::int64_t column = head * width + k;
        accumulate sum = carried_value(g, position, column);
        for (int n = 0; n < count; ++n) {
          sum += weights[n] * widen<accumulate>(row_at(n, position)[column]);
        }
        if (finishes() && g == 0) { mix_[column] = sum; }
        else {
          const std::int64_t slot = problem_.states.first_slot + g;
          mhar::store(
              problem_.states.mix, problem_.states.type,
              slot * problem_.states.slot_stride + position * problem_.extent.width + column, sum);
        }
      }
    }
  }

  //! Gate, partial, output norm, and the stores.
  __device__ void finish(std::int64_t position)
  {
    const output_stage& stage = problem_.stage;
    const route_outputs<T>& outputs = problem_.outputs;
    const std::int64_t width = problem_.extent.width;
    const accumulate gate =
        stage.gate ? mhar::load<accumulate>(stage.gate.data, stage.gate.type, 0) : accumulate{1};
    for (std::int64_t k = threadIdx.x; k < width; k += Threads) {
      const accumulate mix = mix_[k];
      const accumulate value = detail::combined_value(stage, gate, mix, position, k);
      if (outputs.mix) { detail::update_element(outputs.mix, position, k, mix); }
      if (outputs.combined) { detail::update_element(outputs.combined, position, k, value); }
      mix_[k] = value;
    }
    if (!outputs.y) { return; }
    accumulate inverse = 1;
    if (stage.norm == output_norm::rms) {
      __syncthreads();
      inverse = detail::block_inverse_rms(
          sum_of_, [this](std::int64_t k) { return mix_[k]; }, width, width,
          static_cast<accumulate>(stage.norm_eps));
    }
    for (std::int64_t k = threadIdx.x; k < width; k += Threads) {
      accumulate value = mix_[k];
      if (stage.norm == output_norm::rms) {
        value *= inverse;
        if (stage.norm_weight) {
          value *= mhar::load<accumulate>(stage.norm_weight.data, stage.norm_weight.type, k);
        }
      }
      detail::update_element(outputs.y, position, k, value);
    }
  }

  const advance_problem<T>& problem_;
  const row_pointers<T, Capacity>& rows_;
  block_sum sum_of_;
  int stride_;           // rows of a call, a private one included
  accumulate* mix_;      // [d] of the first call
  accumulate* weights_;  // [calls][stride]
  accumulate* carried_;  // [calls]
  accumulate* inverse_;  // [stride]
};

}  // namespace block
MHAR_NAMESPACE_END
