// SPDX-License-Identifier: Apache-2.0
//! Validation of the last step of a sweep's backward: the gradients of all sites' parameters.
#pragma once

#include <mhar/types/detail/intervals.hpp>
#include <mhar/types/detail/validate_sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace detail {

//! Sites with one gradient array between them (tied parameters) would each write it, in no order: such gradients are wanted
//! apart and summed by the caller. Nor may one site's gradient lie where another's parameters or the partial sums are read.
template <class T>
void check_sites_apart(checker& checks, const reduce_problem<T>& problem) noexcept
{
  const std::int64_t width = problem.extent.width;
  const std::int64_t query_width = width * problem.queries_per_site;
  const auto bytes_of = [](const auto& target, std::int64_t count) {
    const auto begin = reinterpret_cast<std::uintptr_t>(target.data);
    return begin == 0
               ? interval{}
               : interval{begin, begin + static_cast<std::uintptr_t>(count * size_of(target.type))};
  };
  constexpr std::int64_t kinds = 6;
  const auto gradient = [&](std::int64_t index) {
    const site_gradients& wanted = problem.gradients[index / kinds];
    switch (index % kinds) {
      case 0: return bytes_of(wanted.query, query_width);
      case 1: return bytes_of(wanted.norm_weight, width);
      case 2: return bytes_of(wanted.bias, wanted.bias ? problem.num_bias[index / kinds] : 0);
      case 3: return bytes_of(wanted.null_source, width);
      case 4: return bytes_of(wanted.gate, 1);
      default: return bytes_of(wanted.output_norm_weight, width);
    }
  };
  const intervals<decltype(gradient)> all{problem.num_sites * kinds, gradient};
  checks.require(all.disjoint(), code::aliasing, "gradients",
                 "two gradient arrays share memory: tied parameters need one each");
  for (int index = 0; checks.ok() && index < problem.num_sites; ++index) {
    const site_parameters& site = problem.sites[index];
    checks.require(!all.any_meets(bytes_of(site.query, query_width)) &&
                       !all.any_meets(bytes_of(site.norm_weight, width)),
                   code::aliasing, "gradients", "a gradient overlaps a site's parameter");
  }
  region_list<8> sums;
  add_partials(checks, problem.partials, width, sums);
  for (const region& each : sums) {
    checks.require(!all.any_meets({each.begin, each.end()}), code::aliasing, "gradients",
                   "a gradient overlaps the partial sums");
  }
}

}  // namespace detail

template <class T>
status validate(const reduce_problem<T>& problem) noexcept
{
  detail::checker checks;
  const shape& extent = problem.extent;
  const std::int64_t queries = problem.queries_per_site;
  checks.extent(extent);
  checks.require(problem.num_sites >= 1, code::bad_shape, "num_sites",
                 "there must be at least one site");
  checks.require(queries >= 1, code::bad_shape, "queries_per_site",
                 "a site has at least one query");
  checks.require(problem.sites != nullptr, code::missing_argument, "sites",
                 "the sites are required");
  checks.require(problem.gradients != nullptr, code::missing_argument, "gradients",
                 "the gradients are required");
  checks.require(problem.partials.num_chunks >= 1, code::bad_shape, "partials.num_chunks",
                 "there is no chunk");
  checks.require(!checks.ok() || problem.num_sites <= problem.partials.num_calls / queries,
                 code::bad_shape, "partials.num_calls",
                 "the partial sums cover fewer calls than the sites have");
  checks.require(problem.partials.bias == nullptr || detail::is_index(problem.partials.bias_stride),
                 code::bad_stride, "partials.bias_stride",
                 "a number of biases must be between 0 and 2^31 - 1");
  for (int index = 0; checks.ok() && index < problem.num_sites; ++index) {
    const site_parameters& site = problem.sites[index];
    const site_gradients& wanted = problem.gradients[index];
    const gradient_partials<accumulate_t<T>>& partials = problem.partials;
    detail::region_list<4> inputs;
    detail::region_list<6> outputs;
    const std::int64_t num_bias = problem.num_bias != nullptr ? problem.num_bias[index] : 0;
    checks.scale<accumulate_t<T>>(site.scale, "sites.scale");
    inputs.add(checks.input(site.query, queries * extent.width, "sites.query"));
    inputs.add(checks.input(site.norm_weight, extent.width, "sites.norm_weight"));
    outputs.add(checks.output(wanted.query, queries * extent.width, "gradients.query"));
    outputs.add(checks.output(wanted.norm_weight, extent.width, "gradients.norm_weight"));
    outputs.add(checks.output(wanted.bias, num_bias, "gradients.bias"));
    outputs.add(checks.output(wanted.null_source, extent.width, "gradients.null_source"));
    outputs.add(checks.output(wanted.gate, 1, "gradients.gate"));
    outputs.add(
        checks.output(wanted.output_norm_weight, extent.width, "gradients.output_norm_weight"));
    checks.require((!wanted.query && !wanted.norm_weight) || partials.query != nullptr,
                   code::missing_argument, "partials.query",
                   "a gradient is wanted whose partial sums are missing");
    checks.require(!wanted.norm_weight || site.query, code::missing_argument, "sites.query",
                   "the gradient of the norm weight needs the query");
    checks.require(!wanted.bias || partials.bias != nullptr, code::missing_argument,
                   "partials.bias", "a gradient is wanted whose partial sums are missing");
    // Entry 0 of the partial sums is the null source's.
    const std::int64_t num_rows = num_bias - (site.null_source ? 1 : 0);
    checks.require(!wanted.bias || (num_bias >= 1 && num_rows <= partials.bias_stride),
                   code::bad_shape, "num_bias",
                   "the bias has no entry, or more than the partial sums hold");
    checks.require(!wanted.null_source || partials.null_source != nullptr, code::missing_argument,
                   "partials.null_source", "a gradient is wanted whose partial sums are missing");
    checks.require(!wanted.gate || partials.gate != nullptr, code::missing_argument,
                   "partials.gate", "a gradient is wanted whose partial sums are missing");
    checks.require(!wanted.output_norm_weight || partials.output_norm != nullptr,
                   code::missing_argument, "partials.output_norm",
                   "a gradient is wanted whose partial sums are missing");
    checks.apart(inputs, outputs);
  }
  if (checks.ok()) { detail::check_sites_apart(checks, problem); }
  return checks.answer();
}

MHAR_NAMESPACE_END
