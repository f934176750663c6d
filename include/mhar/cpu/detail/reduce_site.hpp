// SPDX-License-Identifier: Apache-2.0
//! The last sums of one site's parameter gradients, a block of columns at a time so that no memory is needed.
#pragma once

#include <mhar/cpu/detail/typed.hpp>
#include <mhar/types/sweep.hpp>

#include <algorithm>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Columns [first, first + count) of the sum over chunks of one call's partial sums, which have `size` columns.
template <class Accumulate>
void sum_chunks(Accumulate* out, const Accumulate* partials, int num_chunks, int num_calls,
                std::int64_t call, std::int64_t size, std::int64_t first,
                std::int64_t count) noexcept
{
  std::fill(out, out + count, Accumulate{0});
  for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const Accumulate* const part = partials + (chunk * num_calls + call) * size + first;
    for (std::int64_t k = 0; k < count; ++k) { out[k] += part[k]; }
  }
}

//! A gradient that is a plain sum: over the chunks, and over the queries of the site; the first `skipped` columns do not count.
template <class T>
void reduce_sum(const reduce_problem<T>& problem, int site, const accumulate_t<T>* partials,
                std::int64_t size, const array& out, std::int64_t wanted,
                std::int64_t skipped = 0) noexcept
{
  using accumulate = accumulate_t<T>;
  constexpr std::int64_t block = 256;
  if (!out) { return; }
  for (std::int64_t first = 0; first < wanted; first += block) {
    const std::int64_t count = (std::min)(block, wanted - first);
    accumulate sum[block] = {};
    accumulate part[block];
    for (int query = 0; query < problem.queries_per_site; ++query) {
      const std::int64_t call = std::int64_t{site} * problem.queries_per_site + query;
      sum_chunks(part, partials, problem.partials.num_chunks, problem.partials.num_calls, call,
                 size, skipped + first, count);
      for (std::int64_t k = 0; k < count; ++k) { sum[k] += part[k]; }
    }
    write(out.data, out.type, out.mode, first, sum, count);
  }
}

//! dq of every query and dg, from dw.
template <class T>
void reduce_query(const reduce_problem<T>& problem, int site) noexcept
{
  using accumulate = accumulate_t<T>;
  constexpr std::int64_t block = 256;
  const site_parameters& parameters = problem.sites[site];
  const site_gradients& wanted = problem.gradients[site];
  if (!wanted.query && !wanted.norm_weight) { return; }
  const std::int64_t width = problem.extent.width;
  const auto scale = static_cast<accumulate>(parameters.scale);
  for (std::int64_t first = 0; first < width; first += block) {
    const std::int64_t count = (std::min)(block, width - first);
    accumulate folded[block];
    accumulate values[block];
    accumulate weight_gradient[block] = {};
    for (std::int64_t query = 0; query < problem.queries_per_site; ++query) {
      const std::int64_t call = site * std::int64_t{problem.queries_per_site} + query;
      sum_chunks(folded, problem.partials.query, problem.partials.num_chunks,
                 problem.partials.num_calls, call, width, first, count);
      for (std::int64_t k = 0; k < count; ++k) { folded[k] *= scale; }
      if (wanted.norm_weight) {
        read(values, parameters.query.data, parameters.query.type, query * width + first, count);
        for (std::int64_t k = 0; k < count; ++k) { weight_gradient[k] += folded[k] * values[k]; }
      }
      if (wanted.query) {
        if (parameters.norm_weight) {
          read(values, parameters.norm_weight.data, parameters.norm_weight.type, first, count);
          for (std::int64_t k = 0; k < count; ++k) { folded[k] *= values[k]; }
        }
        write(wanted.query.data, wanted.query.type, wanted.query.mode, query * width + first,
              folded, count);
      }
    }
    if (wanted.norm_weight) {
      write(wanted.norm_weight.data, wanted.norm_weight.type, wanted.norm_weight.mode, first,
            weight_gradient, count);
    }
  }
}

template <class T>
void reduce_site(const reduce_problem<T>& problem, int site) noexcept
{
  const gradient_partials<accumulate_t<T>>& partials = problem.partials;
  const site_gradients& wanted = problem.gradients[site];
  const std::int64_t width = problem.extent.width;
  reduce_query(problem, site);
  reduce_sum(problem, site, partials.null_source, width, wanted.null_source, width);
  reduce_sum(problem, site, partials.gate, 1, wanted.gate, 1);
  reduce_sum(problem, site, partials.output_norm, width, wanted.output_norm_weight, width);
  if (!wanted.bias) { return; }
  // Entry 0 of the partial sums is the null source's; a site without one has no such entry.
  const bool has_null = static_cast<bool>(problem.sites[site].null_source);
  reduce_sum(problem, site, partials.bias, partials.bias_stride + 1, wanted.bias,
             problem.num_bias[site], has_null ? 0 : 1);
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
