// SPDX-License-Identifier: Apache-2.0
//! A backward pass of a sweep as one block computes it for one chunk of positions: any type, shape,
//! alignment and option.
#pragma once

#include <mhar/block/detail/sweep_values.cuh>
#include <mhar/block/row_pointers.cuh>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! A pass as its kernel reads it. Row 0 of `rows` is the lowest row of the pass, row 0 of the
//! calls' views its first call.
template <class T, int Capacity>
struct gather_any_params
{
  gather_problem<T> problem;
  row_pointers<T, Capacity> rows;
  row_pointers<T, Capacity> call_gradients;
  row_pointers<T, Capacity> mixes;
  accumulate_t<T>* scratch = nullptr;  //!< gather_any::scratch_size elements per chunk
  int num_chunks = 1;
};

//! Threads      all of the block
//! Barriers     a few per head
//! Scratch      global memory of the block's own: the rows' gradients, and three numbers per pair
//!              of a head
//! Numerics     accumulate_t<T>; weights are recomputed from lse; calls are added in order, and
//!              positions in order within a chunk
template <class T, int Capacity, int Threads>
class gather_any
{
public:
  using accumulate = accumulate_t<T>;
  using params = gather_any_params<T, Capacity>;

  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::int64_t scratch_size(std::int64_t width,
                                                                            int members,
                                                                            int range) noexcept
  {
    return members * (width + 1) + std::int64_t{3} * members * range;
  }

  __device__ explicit gather_any(const params& pass)
      : pass_{pass}, problem_{pass.problem}, chunk_{static_cast<int>(blockIdx.x)}
  {
    const std::int64_t pairs = std::int64_t{problem_.num_calls} * problem_.num_rows;
    sums_ = pass.scratch +
            chunk_ * scratch_size(problem_.extent.width, problem_.num_rows, problem_.num_calls);
    head_sums_ = sums_ + problem_.num_rows * problem_.extent.width;
    scores_ = head_sums_ + problem_.num_rows;
    products_ = scores_ + pairs;
    logits_ = products_ + pairs;
  }

  //! The positions of chunk blockIdx.x.
  __device__ void run()
  {
    const std::int64_t positions = problem_.extent.num_positions;
    const std::int64_t first = positions * chunk_ / pass_.num_chunks;
    const std::int64_t last = positions * (chunk_ + 1) / pass_.num_chunks;
    for (std::int64_t p = first; p < last; ++p) {
      start(p);
      __syncthreads();
      for (int h = 0; h < problem_.extent.num_heads; ++h) {
        find_products(p, h);
        __syncthreads();
        find_factors(p, h);
        __syncthreads();
        add_to_rows(p, h);
        add_to_queries(p, h);
        __syncthreads();
      }
      finish(p);
      __syncthreads();
    }
  }

private:
  static constexpr int num_warps = Threads / 32;

  [[nodiscard]] __device__ const T* row_at(int member, std::int64_t position) const
  {
    return pass_.rows.at(problem_.num_rows - 1 - member, position);
  }
  [[nodiscard]] __device__ accumulate inverse_of(int member, std::int64_t position) const
  {
    return problem_
        .inverse_rms[(problem_.top_row - member) * problem_.extent.num_positions + position];
  }
  [[nodiscard]] __device__ std::int64_t head_index(int call, std::int64_t position, int head) const
  {
    const shape& extent = problem_.extent;
    return ((problem_.first_call + call) * extent.num_positions + position) * extent.num_heads +
           head;
  }
  [[nodiscard]] __device__ bool rounds() const
  {
    return problem_.sites.rounding != key_rounding::none;
  }

  //! D of the new calls; the rows' kept gradients.
  __device__ void start(std::int64_t position)
  {
    const shape& extent = problem_.extent;
    const std::int64_t width = extent.head_width();
    const int heads = problem_.num_new_calls * extent.num_heads;
    for (int index = threadIdx.x / 32; index < heads; index += num_warps) {
      const int c = index / extent.num_heads;
      const int h = index - c * extent.num_heads;
      const T* const gradient = pass_.call_gradients.at(c, position) + h * width;
      const T* const mix = pass_.mixes.at(c, position) + h * width;
      const accumulate sum = detail::warp_dot<accumulate>(
          [gradient](std::int64_t k) { return widen<accumulate>(gradient[k]); },
          [mix](std::int64_t k) { return widen<accumulate>(mix[k]); }, width);
      if (threadIdx.x % 32 == 0) { problem_.dot[head_index(c, position, h)] = sum; }
    }
    const bool kept = problem_.start == pass_start::kept;
    for (int m = 0; m < problem_.num_rows; ++m) {
      const std::int64_t slot = problem_.states.first_slot + m;
      const std::int64_t from = slot * problem_.states.slot_stride + position * extent.width;
      for (std::int64_t k = threadIdx.x; k < extent.width; k += Threads) {
        sums_[m * extent.width + k] =
            kept ? mhar::load<accumulate>(problem_.states.gradient, problem_.states.type, from + k)
                 : accumulate{0};
      }
      if (threadIdx.x == 0) {
        head_sums_[m] =
            kept ? problem_.states.head_sum[slot * extent.num_positions + position] : accumulate{0};
      }
    }
  }

  //! One warp per pair: <w, s>, <do, s>, and <w, key(s)> where keys are rounded.
  __device__ void find_products(std::int64_t position, int head)
  {
    const std::int64_t width = problem_.extent.head_width();
    const int pairs = problem_.num_calls * problem_.num_rows;
    for (int pair = threadIdx.x / 32; pair < pairs; pair += num_warps) {
      const int c = pair / problem_.num_rows;
      const int m = pair - c * problem_.num_rows;
      const T* const row = row_at(m, position) + head * width;
      const T* const gradient = pass_.call_gradients.at(c, position) + head * width;
      const accumulate* const query = query_of(c) + head * width;
      const auto value = [row](std::int64_t k) { return widen<accumulate>(row[k]); };
      const auto weight = [query](std::int64_t k) { return query[k]; };
      const accumulate score = detail::warp_dot<accumulate>(weight, value, width);
      const accumulate product = detail::warp_dot<accumulate>(
          [gradient](std::int64_t k) { return widen<accumulate>(gradient[k]); }, value, width);
      accumulate rounded = 0;
      if (rounds()) {
        const accumulate inverse = inverse_of(m, position);
        rounded = detail::warp_dot<accumulate>(
            weight,
            [&](std::int64_t k) {
              return detail::key_of(row[k], inverse, problem_.sites.rounding);
            },
            width);
      }
      if (threadIdx.x % 32 == 0) {
        scores_[pair] = score;
        products_[pair] = product;
        logits_[pair] = rounded;
      }
    }
  }

  //! One thread per row, calls in order: products become alpha*a, scores r*dl, logits dl.
  __device__ void find_factors(std::int64_t position, int head)
  {
    const folded_sites<accumulate>& sites = problem_.sites;
    for (int m = threadIdx.x; m < problem_.num_rows; m += Threads) {
      const accumulate inverse = inverse_of(m, position);
      const int entry = problem_.bias_entry + problem_.top_row - m;
      accumulate head_sum = head_sums_[m];
      for (int c = 0; c < problem_.num_calls; ++c) {
        const std::int64_t call = problem_.first_call + c;
        const int pair = c * problem_.num_rows + m;
        const accumulate score = inverse * scores_[pair];
        const accumulate bias =
            sites.bias == nullptr ? accumulate{0} : sites.bias[call * sites.bias_stride + entry];
        const accumulate logit = (rounds() ? logits_[pair] : score) + bias;
        const std::int64_t at = head_index(c, position, head);
        const accumulate weight =
            detail::weight_of(logit, problem_.lse[at], sites.logit_gate[call]);
        // Conditions, not products with 0: a source without weight may have an infinite score.
        const bool fixed = weight == 0 || sites.logit_gate[call] == 0;
        const accumulate gradient =
            fixed ? accumulate{0}
                  : sites.logit_gate[call] * weight * (products_[pair] - problem_.dot[at]);
        if (gradient != 0) { head_sum += gradient * score; }
        if (problem_.partials.bias != nullptr) { *bias_sum(call, entry) += gradient; }
        products_[pair] = weight == 0 ? accumulate{0} : sites.gate[call] * weight;
        // The inverse rms of a row that is not finite is 0 or not a number.
        scores_[pair] = gradient == 0 ? accumulate{0} : inverse * gradient;
        logits_[pair] = gradient;
      }
      head_sums_[m] = head_sum;
    }
  }

  __device__ void add_to_rows(std::int64_t position, int head)
  {
    const std::int64_t width = problem_.extent.head_width();
    for (int m = 0; m < problem_.num_rows; ++m) {
      for (std::int64_t k = threadIdx.x; k < width; k += Threads) {
        const std::int64_t column = head * width + k;
        accumulate sum = sums_[m * problem_.extent.width + column];
        for (int c = 0; c < problem_.num_calls; ++c) {
          const int pair = c * problem_.num_rows + m;
          // What a factor of 0 would multiply may be infinite.
          if (products_[pair] != 0) {
            sum +=
                products_[pair] * widen<accumulate>(pass_.call_gradients.at(c, position)[column]);
          }
          if (scores_[pair] != 0) { sum += scores_[pair] * query_of(c)[column]; }
        }
        sums_[m * problem_.extent.width + column] = sum;
      }
    }
  }

  __device__ void add_to_queries(std::int64_t position, int head)
  {
    if (problem_.partials.query == nullptr) { return; }
    const std::int64_t width = problem_.extent.head_width();
    const accumulate* const factors = rounds() ? logits_ : scores_;
    for (int c = 0; c < problem_.num_calls; ++c) {
      accumulate* const sums = problem_.partials.query +
                               partial_index(problem_.first_call + c) * problem_.extent.width +
                               head * width;
      for (std::int64_t k = threadIdx.x; k < width; k += Threads) {
        accumulate sum = sums[k];
        for (int m = 0; m < problem_.num_rows; ++m) {
          const accumulate factor = factors[c * problem_.num_rows + m];
          if (factor == 0) { continue; }
          sum += factor * detail::key_of(row_at(m, position)[head * width + k],
                                         inverse_of(m, position), problem_.sites.rounding);
        }
        sums[k] = sum;
      }
    }
  }

  //! Kept rows go back to their slots; the top row becomes ds = A + r B - (r^2/d) c s.
  __device__ void finish(std::int64_t position)
  {
    const shape& extent = problem_.extent;
    const bool finishes = problem_.end == pass_end::finish_first;
    for (int m = finishes ? 1 : 0; m < problem_.num_rows; ++m) {
      const std::int64_t slot = problem_.states.first_slot + m;
      const std::int64_t to = slot * problem_.states.slot_stride + position * extent.width;
      for (std::int64_t k = threadIdx.x; k < extent.width; k += Threads) {
        mhar::store(problem_.states.gradient, problem_.states.type, to + k,
                    sums_[m * extent.width + k]);
      }
      if (threadIdx.x == 0) {
        problem_.states.head_sum[slot * extent.num_positions + position] = head_sums_[m];
      }
    }
    if (!finishes || !problem_.row_gradient) { return; }
    // r * (r * s): a large row's r^2 would vanish before it meets the row.
    const accumulate inverse = inverse_of(0, position);
    const accumulate factor =
        -inverse * head_sums_[0] / static_cast<accumulate>(extent.full_width());
    const T* const row = row_at(0, position);
    for (std::int64_t k = threadIdx.x; k < extent.width; k += Threads) {
      accumulate sum = sums_[k];
      if (head_sums_[0] != 0) { sum += factor * (inverse * widen<accumulate>(row[k])); }
      detail::update_element(problem_.row_gradient, position, k, sum);
    }
  }

  [[nodiscard]] __device__ const accumulate* query_of(int call) const
  {
    return problem_.sites.query + (problem_.first_call + call) * problem_.extent.width;
  }
  [[nodiscard]] __device__ std::int64_t partial_index(std::int64_t call) const
  {
    return std::int64_t{chunk_} * problem_.partials.num_calls + call;
  }
  [[nodiscard]] __device__ accumulate* bias_sum(std::int64_t call, int entry) const
  {
    return problem_.partials.bias + partial_index(call) * (problem_.partials.bias_stride + 1) + 1 +
           entry;
  }

  const params& pass_;
  const gather_problem<T>& problem_;
  int chunk_;
  accumulate* sums_;       // [rows][d] A + r B
  accumulate* head_sums_;  // [rows] c
  accumulate* scores_;     // [calls][rows] of one head
  accumulate* products_;   // [calls][rows]
  accumulate* logits_;     // [calls][rows]
};

}  // namespace block
MHAR_NAMESPACE_END
