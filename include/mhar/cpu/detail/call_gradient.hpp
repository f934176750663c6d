// SPDX-License-Identifier: Apache-2.0
//! The backward of what follows a mix, at one position and before any row is read: do, D, and the null source's part.
#pragma once

#include <mhar/cpu/detail/chunks.hpp>
#include <mhar/cpu/detail/exponential.hpp>
#include <mhar/cpu/detail/finish.hpp>
#include <mhar/cpu/detail/fold_site.hpp>

#include <cmath>
#include <limits>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Partial sums of one call over one chunk of positions; null where not wanted.
template <class Accumulate>
struct call_partials
{
  Accumulate* query = nullptr;        // [d]
  Accumulate* bias = nullptr;         // [1 + rows], the null source's first
  Accumulate* null_source = nullptr;  // [d]
  Accumulate* gate = nullptr;         // [1]
  Accumulate* output_norm = nullptr;  // [d]
};

//! Chunks are this backend's own; partial sums over others cannot be added to.
template <class Accumulate>
[[nodiscard]] status matching_chunks(const gradient_partials<Accumulate>& partials,
                                     const shape& extent) noexcept
{
  const bool any = partials.query != nullptr || partials.bias != nullptr ||
                   partials.null_source != nullptr || partials.gate != nullptr ||
                   partials.output_norm != nullptr;
  if (!any || partials.num_chunks == num_chunks(extent)) { return {}; }
  return {code::bad_shape, "partials.num_chunks",
          "the number of chunks is not the one that backend::num_chunks gives", 0};
}

template <class Accumulate>
[[nodiscard]] call_partials<Accumulate> partials_of(const gradient_partials<Accumulate>& all,
                                                    std::int64_t width, int chunk,
                                                    int call) noexcept
{
  const std::int64_t index = std::int64_t{chunk} * all.num_calls + call;
  const auto at = [index](Accumulate* start, std::int64_t size) {
    return start == nullptr ? nullptr : start + index * size;
  };
  // Where there are no biases the stride may be anything.
  return {at(all.query, width), at(all.bias, all.bias == nullptr ? 0 : all.bias_stride + 1),
          at(all.null_source, width), at(all.gate, 1), at(all.output_norm, width)};
}

//! out[k] += factor * values[k].
template <class Accumulate, class T>
void add_scaled(Accumulate* out, Accumulate factor, const T* values, std::int64_t count) noexcept
{
  for_each_block<Accumulate>(count, [&](std::int64_t k, auto part) {
    lanes<Accumulate> sum;
    lanes<Accumulate> addend;
    load<Accumulate>(sum, out + k, part);
    load<Accumulate>(addend, values + k, part);
    sum += factor * addend;
    store<Accumulate>(out + k, sum, part);
  });
}

//! <a, b> over `count` columns.
template <class Accumulate, class X, class Y>
[[nodiscard]] Accumulate dot(const X* a, const Y* b, std::int64_t count) noexcept
{
  Accumulate result;
  dots(&a, 1, row_range<Y>{&b, 1}, columns{0, count}, &result, 1);
  return result;
}

//! `gradient` holds dy and becomes do (eq. 9): through the output norm, whose weight's part is added, then plus the upstream on
//! o itself. `combined` is o, needed with an output norm; it is overwritten.
template <class Accumulate>
void output_norm_gradient(const finisher<Accumulate>& with, const const_matrix& combined_gradient,
                          std::int64_t position, Accumulate* gradient, Accumulate* combined,
                          Accumulate* norm_partial, std::int64_t width) noexcept
{
  if (with.stage.norm == output_norm::rms) {
    const auto eps = static_cast<Accumulate>(with.stage.norm_eps);
    const Accumulate inverse = inverse_rms<Accumulate>(combined, width, eps);
    const bool weighted = static_cast<bool>(with.stage.norm_weight);
    for (std::int64_t k = 0; k < width; ++k) {
      combined[k] *= inverse;
      if (norm_partial != nullptr) { norm_partial[k] += gradient[k] * combined[k]; }
      if (weighted) { gradient[k] *= with.norm_weight[k]; }
    }
    const Accumulate mean =
        dot<Accumulate>(gradient, combined, width) / static_cast<Accumulate>(width);
    for (std::int64_t k = 0; k < width; ++k) {
      gradient[k] = inverse * (gradient[k] - mean * combined[k]);
    }
  }
  if (!combined_gradient) { return; }
  read(with.partial, combined_gradient, position, width);
  for (std::int64_t k = 0; k < width; ++k) { gradient[k] += with.partial[k]; }
}

//! The null source of a call over a chunk. It is the same row at every position, so its share of dnull, dw and dbias needs
//! the sums over positions of dl and of a*do only.
template <class Accumulate>
struct null_gradient
{
  null_gradient(arena& memory, std::int64_t width, int num_heads)
      : key{memory.take<Accumulate>(width)},
        scores{memory.take<Accumulate>(num_heads)},
        logit_sums{memory.take<Accumulate>(num_heads)}
  {
  }

  Accumulate* key;         // [d] r * null, rounded as the keys of dw are
  Accumulate* scores;      // [H] u
  Accumulate* logit_sums;  // [H] sum over positions of dl
  Accumulate inverse_rms = 0;
  bool active = false;
};

//! One call's folded parameters.
template <class Accumulate>
struct folded_site
{
  const Accumulate* query = nullptr;
  const Accumulate* null_source = nullptr;
  const Accumulate* null_logit = nullptr;
  Accumulate gate = 1;
  Accumulate logit_gate = 1;
};

template <class Accumulate>
[[nodiscard]] folded_site<Accumulate> folded_of(const folded_sites<Accumulate>& sites,
                                                const shape& extent, std::int64_t call) noexcept
{
  folded_site<Accumulate> site;
  site.query = sites.query + call * extent.width;
  if (sites.null_source != nullptr) {
    site.null_source = sites.null_source + call * extent.width;
    site.null_logit = sites.null_logit + call * extent.num_heads;
  }
  site.gate = sites.gate[call];
  site.logit_gate = sites.logit_gate[call];
  return site;
}

template <class T, class Accumulate>
void prepare(null_gradient<Accumulate>& null, const folded_site<Accumulate>& site,
             const shape& extent, Accumulate eps, key_rounding rounding) noexcept
{
  null.active = site.null_source != nullptr;
  if (!null.active) { return; }
  const std::int64_t width = extent.width;
  null.inverse_rms = inverse_rms<Accumulate>(site.null_source, width, eps);
  null_scores<T>(extent, site.query, site.null_source, null.inverse_rms, plain_key{}, null.scores);
  for (std::int64_t k = 0; k < width; ++k) {
    const Accumulate key = null.inverse_rms * site.null_source[k];
    null.key[k] = rounding == key_rounding::none ? key : widen<Accumulate>(round_to<T>(key));
  }
  std::fill(null.logit_sums, null.logit_sums + extent.num_heads, Accumulate{0});
}

//! Weight of a source of known logit. A call of one source has the weight 1 whatever its logit.
template <class Accumulate>
[[nodiscard]] Accumulate weight_of(Accumulate logit, Accumulate lse, Accumulate logit_gate) noexcept
{
  if (lse == -std::numeric_limits<Accumulate>::infinity()) { return 0; }
  return logit_gate == 0 ? Accumulate{1} : exponential(logit - lse);
}

//! Adds one position to the null source's sums.
template <class Accumulate>
void add_position(const null_gradient<Accumulate>& null, const folded_site<Accumulate>& site,
                  const shape& extent, const Accumulate* gradient, const Accumulate* lse,
                  const Accumulate* dot_sums, const call_partials<Accumulate>& partials) noexcept
{
  const std::int64_t width = extent.head_width();
  for (int h = 0; h < extent.num_heads; ++h) {
    const std::int64_t first = h * width;
    const Accumulate weight = weight_of(site.null_logit[h], lse[h], site.logit_gate);
    if (weight == 0 || site.gate == 0) { continue; }
    if (partials.null_source != nullptr) {
      add_scaled(partials.null_source + first, site.gate * weight, gradient + first, width);
    }
    const Accumulate product = dot<Accumulate>(gradient + first, site.null_source + first, width);
    if (site.logit_gate != 0) {
      null.logit_sums[h] += site.logit_gate * weight * (product - dot_sums[h]);
    }
  }
}

//! Adds the chunk's sums to its partial sums.
template <class Accumulate>
void finish_chunk(const null_gradient<Accumulate>& null, const folded_site<Accumulate>& site,
                  const shape& extent, const call_partials<Accumulate>& partials) noexcept
{
  const std::int64_t width = extent.head_width();
  Accumulate head_sum = 0;
  for (int h = 0; h < extent.num_heads; ++h) {
    const Accumulate sum = null.logit_sums[h];
    if (sum == 0) { continue; }
    const std::int64_t first = h * width;
    head_sum += sum * null.scores[h];
    if (partials.bias != nullptr) { partials.bias[0] += sum; }
    if (partials.query != nullptr) {
      add_scaled(partials.query + first, sum, null.key + first, width);
    }
    if (partials.null_source != nullptr) {
      add_scaled(partials.null_source + first, null.inverse_rms * sum, site.query + first, width);
    }
  }
  if (head_sum == 0 || partials.null_source == nullptr) { return; }
  const Accumulate factor =
      -null.inverse_rms * head_sum / static_cast<Accumulate>(extent.full_width());
  for (std::int64_t k = 0; k < extent.width; ++k) {
    partials.null_source[k] += factor * (null.inverse_rms * site.null_source[k]);
  }
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
