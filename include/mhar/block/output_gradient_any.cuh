// SPDX-License-Identifier: Apache-2.0
//! The backward of what follows a mix as one block computes it for one chunk of positions (eq. 9 to
//! 11).
#pragma once

#include <mhar/block/detail/sweep_values.cuh>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T>
struct output_gradient_any_params
{
  output_gradient_problem<T> problem;
  accumulate_t<T>* scratch = nullptr;  //!< output_gradient_any::scratch_size elements per chunk
  int num_chunks = 1;
};

//! The null source is the same row at every position, so its share of dnull, dw and dbias needs the
//! sums over positions of dl and
//! of a*do only; the rest is done once per chunk.
//!
//! Threads      all of the block
//! Barriers     three per position, more with an output norm
//! Numerics     accumulate_t<T>; D and the null source's parts use do as rounded to T, like the
//!              passes that follow
template <class T, int Threads>
class output_gradient_any
{
public:
  using accumulate = accumulate_t<T>;
  using params = output_gradient_any_params<T>;
  using block_sum = detail::block_sum<accumulate, Threads>;
  using storage = typename block_sum::storage;

  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::int64_t scratch_size(std::int64_t width,
                                                                            int num_heads) noexcept
  {
    return width + 2 * std::int64_t{num_heads};
  }

  __device__ output_gradient_any(const params& call, storage& shared)
      : problem_{call.problem},
        sum_of_{shared},
        num_chunks_{call.num_chunks},
        chunk_{static_cast<int>(blockIdx.x)}
  {
    const shape& extent = problem_.extent;
    gradient_ = call.scratch + chunk_ * scratch_size(extent.width, extent.num_heads);
    weights_ = gradient_ + extent.width;
    logit_sums_ = weights_ + extent.num_heads;
    gate_ = problem_.sites.gate[problem_.call];
    logit_gate_ = problem_.sites.logit_gate[problem_.call];
  }

  //! The positions of chunk blockIdx.x.
  __device__ void run()
  {
    const shape& extent = problem_.extent;
    const std::int64_t first = extent.num_positions * chunk_ / num_chunks_;
    const std::int64_t last = extent.num_positions * (chunk_ + 1) / num_chunks_;
    for (int h = threadIdx.x; h < extent.num_heads; h += Threads) { logit_sums_[h] = 0; }
    for (std::int64_t p = first; p < last; ++p) {
      differentiate_norm(p);
      store(p);
      __syncthreads();
      find_dots(p);
      __syncthreads();
      add_position(p);
      __syncthreads();
    }
    if (has_null()) { finish_null(); }
  }

private:
  [[nodiscard]] __device__ bool has_null() const { return problem_.sites.null_source != nullptr; }
  [[nodiscard]] __device__ std::int64_t partial_index() const
  {
    return std::int64_t{chunk_} * problem_.partials.num_calls + problem_.call;
  }
  //! A set of partial sums of `size` columns; null stays null.
  [[nodiscard]] __device__ accumulate* partials_of(accumulate* all, std::int64_t size) const
  {
    return all == nullptr ? nullptr : all + partial_index() * size;
  }

  //! gradient_ becomes do, not yet rounded.
  __device__ void differentiate_norm(std::int64_t position)
  {
    const output_stage& stage = problem_.stage;
    const std::int64_t width = problem_.extent.width;
    accumulate inverse = 1;
    accumulate mean = 0;
    const auto combined = [&](std::int64_t k) {
      return detail::element_at<accumulate>(problem_.combined, position, k);
    };
    if (stage.norm == output_norm::rms) {
      inverse = detail::block_inverse_rms(sum_of_, combined, width, width,
                                          static_cast<accumulate>(stage.norm_eps));
    }
    accumulate* const norm_sums = partials_of(problem_.partials.output_norm, width);
    accumulate sum = 0;
    for (std::int64_t k = threadIdx.x; k < width; k += Threads) {
      accumulate value = detail::element_at<accumulate>(problem_.output_gradient, position, k);
      if (stage.norm == output_norm::rms) {
        const accumulate normalised = inverse * combined(k);
        if (norm_sums != nullptr) { norm_sums[k] += value * normalised; }
        if (stage.norm_weight) {
          value *= mhar::load<accumulate>(stage.norm_weight.data, stage.norm_weight.type, k);
        }
        sum += value * normalised;
      }
      gradient_[k] = value;
    }
    if (stage.norm == output_norm::rms) { mean = sum_of_(sum) / static_cast<accumulate>(width); }
    for (std::int64_t k = threadIdx.x; k < width; k += Threads) {
      accumulate value = gradient_[k];
      if (stage.norm == output_norm::rms) {
        value = inverse * (value - mean * (inverse * combined(k)));
      }
      if (problem_.combined_gradient) {
        value += detail::element_at<accumulate>(problem_.combined_gradient, position, k);
      }
      gradient_[k] = value;
    }
  }

  //! Writes do, and keeps it as the passes that follow will read it.
  __device__ void store(std::int64_t position)
  {
    for (std::int64_t k = threadIdx.x; k < problem_.extent.width; k += Threads) {
      if (problem_.partial_gradient) {
        detail::update_element(problem_.partial_gradient, position, k, gradient_[k]);
      }
      const T rounded = round_to<T>(gradient_[k]);
      static_cast<T*>(
          problem_.call_gradient.data)[position * problem_.call_gradient.position_stride + k] =
          rounded;
      gradient_[k] = widen<accumulate>(rounded);
    }
  }

  //! One warp per head: D, and the weight and dl of the null source.
  __device__ void find_dots(std::int64_t position)
  {
    const shape& extent = problem_.extent;
    const std::int64_t width = extent.head_width();
    for (int h = threadIdx.x / 32; h < extent.num_heads; h += Threads / 32) {
      const auto gradient = [&](std::int64_t k) { return gradient_[h * width + k]; };
      const accumulate sum = detail::warp_dot<accumulate>(
          gradient,
          [&](std::int64_t k) {
            return detail::element_at<accumulate>(problem_.mix, position, h * width + k);
          },
          width);
      accumulate product = 0;
      if (has_null()) {
        const accumulate* const null =
            problem_.sites.null_source + problem_.call * extent.width + h * width;
        product = detail::warp_dot<accumulate>(
            gradient, [null](std::int64_t k) { return null[k]; }, width);
      }
      if (threadIdx.x % 32 != 0) { continue; }
      const std::int64_t at = position * extent.num_heads + h;
      problem_.dot[at] = sum;
      if (!has_null()) { continue; }
      const accumulate logit =
          problem_.sites.null_logit[std::int64_t{problem_.call} * extent.num_heads + h];
      const accumulate weight = detail::weight_of(logit, problem_.lse[at], logit_gate_);
      weights_[h] = gate_ * weight;
      if (weight != 0 && logit_gate_ != 0) {
        logit_sums_[h] += logit_gate_ * weight * (product - sum);
      }
    }
  }

  __device__ void add_position(std::int64_t position)
  {
    const shape& extent = problem_.extent;
    accumulate* const gate_sum = partials_of(problem_.partials.gate, 1);
    if (gate_sum != nullptr && threadIdx.x == 0) {
      accumulate sum = *gate_sum;
      for (int h = 0; h < extent.num_heads; ++h) {
        sum += problem_.dot[position * extent.num_heads + h];
      }
      *gate_sum = sum;
    }
    accumulate* const null_sums = partials_of(problem_.partials.null_source, extent.width);
    if (!has_null() || null_sums == nullptr) { return; }
    for (std::int64_t k = threadIdx.x; k < extent.width; k += Threads) {
      const accumulate weight = weights_[k / extent.head_width()];
      if (weight != 0) { null_sums[k] += weight * gradient_[k]; }
    }
  }

  //! Adds the chunk's sums over positions to the null source's shares.
  __device__ void finish_null()
  {
    const shape& extent = problem_.extent;
    const std::int64_t width = extent.head_width();
    const accumulate* const null = problem_.sites.null_source + problem_.call * extent.width;
    const accumulate* const query = problem_.sites.query + problem_.call * extent.width;
    const accumulate inverse = detail::block_inverse_rms(
        sum_of_, [null](std::int64_t k) { return null[k]; }, extent.width, extent.full_width(),
        static_cast<accumulate>(problem_.eps));
    for (int h = threadIdx.x / 32; h < extent.num_heads; h += Threads / 32) {
      const accumulate score =
          detail::warp_dot<accumulate>([&](std::int64_t k) { return query[h * width + k]; },
                                       [&](std::int64_t k) { return null[h * width + k]; }, width);
      if (threadIdx.x % 32 == 0) { weights_[h] = inverse * score; }
    }
    __syncthreads();
    accumulate head_sum = 0;
    accumulate total = 0;
    for (int h = 0; h < extent.num_heads; ++h) {
      if (logit_sums_[h] != 0) { head_sum += logit_sums_[h] * weights_[h]; }
      total += logit_sums_[h];
    }
    accumulate* const bias_sums =
        partials_of(problem_.partials.bias, problem_.partials.bias_stride + 1);
    if (bias_sums != nullptr && threadIdx.x == 0) { bias_sums[0] += total; }
    accumulate* const query_sums = partials_of(problem_.partials.query, extent.width);
    accumulate* const null_sums = partials_of(problem_.partials.null_source, extent.width);
    const accumulate factor = -inverse * head_sum / static_cast<accumulate>(extent.full_width());
    for (std::int64_t k = threadIdx.x; k < extent.width; k += Threads) {
      const accumulate sum = logit_sums_[k / width];
      const accumulate key = inverse * null[k];
      if (sum != 0 && query_sums != nullptr) {
        query_sums[k] += sum * (problem_.sites.rounding == key_rounding::none
                                    ? key
                                    : widen<accumulate>(round_to<T>(key)));
      }
      if (null_sums == nullptr) { continue; }
      if (sum != 0) { null_sums[k] += inverse * sum * query[k]; }
      if (head_sum != 0) { null_sums[k] += factor * key; }
    }
  }

  const output_gradient_problem<T>& problem_;
  block_sum sum_of_;
  int num_chunks_;
  int chunk_;
  accumulate* gradient_;    // [d]
  accumulate* weights_;     // [H] gate * a of the null source; its scores at the end
  accumulate* logit_sums_;  // [H] sum over positions of its dl
  accumulate gate_;
  accumulate logit_gate_;
};

}  // namespace block
MHAR_NAMESPACE_END
