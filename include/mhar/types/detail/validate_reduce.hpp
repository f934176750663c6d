// SPDX-License-Identifier: Apache-2.0
//! Validation of the last step of a sweep's backward: the gradients of all sites' parameters.
#pragma once

#include <mhar/types/detail/validate_sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace detail {

//! Sites with one gradient array between them (tied parameters) would each write it, in no order: such gradients are wanted
//! apart and summed by the caller. Arrays of one kind are compared with each other, which is where a tie puts them.
template <class T>
void check_sites_apart(checker& checks, const reduce_problem<T>& problem) noexcept
{
  const std::int64_t width = problem.extent.width;
  const auto bytes = [&](const array& target, int index, array site_gradients::*kind) {
    const bool scalar = kind == &site_gradients::gate;
    const bool query = kind == &site_gradients::query;
    const bool bias = kind == &site_gradients::bias;
    const std::int64_t size = scalar  ? 1
                              : query ? width * problem.queries_per_site
                              : bias  ? problem.num_bias[index]
                                      : width;
    return size * size_of(target.type);
  };
  // Named: nvcc rewrites a loop over a list of member pointers into what its host compiler warns of.
  using member = array site_gradients::*;
  constexpr member kinds[] = {&site_gradients::query, &site_gradients::norm_weight,
                              &site_gradients::bias,  &site_gradients::null_source,
                              &site_gradients::gate,  &site_gradients::output_norm_weight};
  for (const member kind : kinds) {
    for (int index = 1; checks.ok() && index < problem.num_sites; ++index) {
      const array& own = problem.gradients[index].*kind;
      if (!own) { continue; }
      const auto begin = reinterpret_cast<std::uintptr_t>(own.data);
      const auto end = begin + static_cast<std::uintptr_t>(bytes(own, index, kind));
      for (int before = 0; before < index; ++before) {
        const array& other = problem.gradients[before].*kind;
        const auto other_begin = reinterpret_cast<std::uintptr_t>(other.data);
        checks.require(
            !other || end <= other_begin ||
                begin >= other_begin + static_cast<std::uintptr_t>(bytes(other, before, kind)),
            code::aliasing, "gradients", "two sites share a gradient array");
      }
    }
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
  checks.require(problem.num_sites * queries <= problem.partials.num_calls, code::bad_shape,
                 "partials.num_calls", "the partial sums cover fewer calls than the sites have");
  for (int index = 0; checks.ok() && index < problem.num_sites; ++index) {
    const site_parameters& site = problem.sites[index];
    const site_gradients& wanted = problem.gradients[index];
    const gradient_partials<accumulate_t<T>>& partials = problem.partials;
    detail::region_list<4> inputs;
    detail::region_list<6> outputs;
    const std::int64_t num_bias = problem.num_bias != nullptr ? problem.num_bias[index] : 0;
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
  detail::check_sites_apart(checks, problem);
  return checks.answer();
}

MHAR_NAMESPACE_END
