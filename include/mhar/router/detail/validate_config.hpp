// SPDX-License-Identifier: Apache-2.0
//! The checks of a router_config, each with the name of the field it is about.
#pragma once

#include <mhar/router/router_config.hpp>
#include <mhar/types/detail/checker.hpp>

#include <cstddef>
#include <cstdint>

MHAR_NAMESPACE_BEGIN

namespace detail {

[[nodiscard]] inline bool is_sharded(const router_config& config) noexcept
{
  return config.extent.norm_width != 0;
}

[[nodiscard]] inline bool has_null_source(const router_config& config) noexcept
{
  return static_cast<bool>(config.sites.front().parameters.null_source);
}

[[nodiscard]] inline const router_site& site_of(const router_config& config, int call) noexcept
{
  return config.sites[static_cast<std::size_t>(call / config.queries_per_site)];
}

//! Sources of a call in all.
[[nodiscard]] inline int num_sources(const router_config& config, int call) noexcept
{
  const depth_schedule& schedule = config.plan.schedule;
  return schedule.num_rows[static_cast<std::size_t>(call)] + (schedule.has_private(call) ? 1 : 0) +
         (has_null_source(config) ? 1 : 0);
}

[[nodiscard]] inline status validate_extent(const router_config& config) noexcept
{
  const shape& extent = config.extent;
  checker checks;
  checks.extent(extent);
  if (!checks.ok()) { return checks.answer(); }
  // Everything in the block that grows with positions is at most this times a few bytes.
  const std::int64_t most = std::int64_t{config.plan.num_calls()} + config.plan.num_rows() + 1;
  checks.require(extent.num_positions * extent.width <= (std::int64_t{1} << 58) / most,
                 code::bad_shape, "extent.num_positions",
                 "rows and calls of these extents do not fit 64-bit offsets");
  return checks.answer();
}

[[nodiscard]] inline status validate_plan(const router_config& config) noexcept
{
  const depth_plan& plan = config.plan;
  if (const status schedule = validate(plan.schedule); !schedule.ok()) { return schedule; }
  if (plan.forward.size() != plan.num_calls()) {
    return {code::bad_value, "plan.forward", "was made for another schedule"};
  }
  for (int call = 0; call < plan.num_calls(); ++call) {
    if (plan.forward.num_items(call) != plan.schedule.num_rows[static_cast<std::size_t>(call)]) {
      return {code::bad_value, "plan.forward", "was made for another schedule"};
    }
  }
  if (config.use == router_use::inference) { return {}; }
  if (plan.backward.size() != plan.num_rows()) {
    return {code::bad_value, "plan.backward", "was made for another schedule"};
  }
  for (int row = 0; row < plan.num_rows(); ++row) {
    if (plan.backward.num_items(plan.num_rows() - 1 - row) !=
        plan.num_calls() - plan.first_reader(row)) {
      return {code::bad_value, "plan.backward", "was made for another schedule"};
    }
  }
  return {};
}

//! What a site has to be by itself: what the verbs would refuse later is refused before any memory is taken.
template <class T>
[[nodiscard]] status validate_site_alone(const router_config& config,
                                         const router_site& site) noexcept
{
  const site_parameters& mine = site.parameters;
  const output_stage& stage = site.stage;
  const std::int64_t width = config.extent.width;
  checker checks;
  checks.require(static_cast<bool>(mine.query), code::missing_argument, "query", "is required");
  checks.scale<accumulate_t<T>>(mine.scale, "scale");
  checks.epsilon<accumulate_t<T>>(mine.eps, "eps");
  checks.require(!stage.partial, code::bad_value, "partial", "is given with a call");
  checks.require(stage.norm == output_norm::none || stage.norm == output_norm::rms, code::bad_value,
                 "norm", "unknown output norm");
  if (stage.norm == output_norm::rms) {
    checks.epsilon<accumulate_t<T>>(stage.norm_eps, "norm_eps");
  }
  checks.require(stage.norm == output_norm::rms || !stage.norm_weight, code::bad_value,
                 "stage.norm_weight", "is given but there is no output norm");
  const auto check_array = [&](const const_array& values, std::int64_t size, const char* name) {
    static_cast<void>(checks.input(values, size, name));
  };
  check_array(mine.query, width * config.queries_per_site, "query");
  check_array(mine.norm_weight, width, "norm_weight");
  check_array(mine.bias, 1, "bias");
  check_array(mine.null_source, width, "null_source");
  check_array(stage.gate, 1, "gate");
  check_array(stage.norm_weight, width, "stage.norm_weight");
  return checks.answer();
}

template <class T>
[[nodiscard]] status validate_site(const router_config& config, const router_site& site) noexcept
{
  const site_parameters& first = config.sites.front().parameters;
  const site_parameters& mine = site.parameters;
  if (const status alone = validate_site_alone<T>(config, site); !alone.ok()) { return alone; }
  if (mine.eps < first.eps || mine.eps > first.eps) {
    return {code::unsupported, "eps", "must be the same for all sites"};
  }
  if (mine.rounding != first.rounding ||
      (mine.rounding != key_rounding::none && mine.rounding != key_rounding::storage)) {
    return {code::unsupported, "rounding", "must be none or storage, the same for all sites"};
  }
  if (static_cast<bool>(mine.null_source) != static_cast<bool>(first.null_source)) {
    return {code::unsupported, "null_source", "either all sites have one or none does"};
  }
  if (is_sharded(config) && (mine.null_source || site.stage.norm == output_norm::rms)) {
    return {code::unsupported, "norm_width",
            "sharded heads know neither a null source nor an output norm"};
  }
  return {};
}

template <class T>
[[nodiscard]] status validate_sites(const router_config& config) noexcept
{
  const depth_schedule& schedule = config.plan.schedule;
  const int per_site = config.queries_per_site;
  if (per_site < 1 || schedule.num_calls() % per_site != 0) {
    return {code::bad_shape, "queries_per_site", "must divide the number of calls"};
  }
  if (static_cast<int>(config.sites.size()) != schedule.num_calls() / per_site) {
    return {code::bad_shape, "sites", "must have one entry per queries_per_site calls"};
  }
  for (const router_site& site : config.sites) {
    if (const status outcome = validate_site<T>(config, site); !outcome.ok()) { return outcome; }
  }
  for (int call = 0; call < schedule.num_calls(); ++call) {
    const int first = call - call % per_site;
    if (schedule.num_rows[static_cast<std::size_t>(call)] !=
            schedule.num_rows[static_cast<std::size_t>(first)] ||
        schedule.has_private(call) != schedule.has_private(first)) {
      return {code::bad_shape, "schedule", "the queries of one site must read the same rows"};
    }
    if (schedule.has_private(call) && is_sharded(config)) {
      return {code::unsupported, "norm_width", "sharded heads know no private row"};
    }
    if (num_sources(config, call) < 1) {
      return {code::bad_shape, "schedule", "a call has no source at all"};
    }
  }
  return {};
}

//! Enumerators are the first two of their types.
template <class Choice>
[[nodiscard]] constexpr bool is_choice(Choice value) noexcept
{
  return value == static_cast<Choice>(0) || value == static_cast<Choice>(1);
}

[[nodiscard]] inline status validate_homes(const router_config& config) noexcept
{
  const wanted_gradients& wanted = config.wanted;
  checker checks;
  checks.require(is_choice(config.use), code::bad_value, "use", "unknown use");
  checks.require(is_choice(config.mixes), code::bad_value, "mixes", "unknown keeper");
  checks.require(is_choice(config.gradients), code::bad_value, "gradients", "unknown home");
  checks.require(is_choice(config.rows) || config.rows == row_home::listed, code::bad_value, "rows",
                 "unknown home");
  checks.require(is_choice(wanted.query) && is_choice(wanted.bias) &&
                     is_choice(wanted.null_source) && is_choice(wanted.gate) &&
                     is_choice(wanted.output_norm_weight),
                 code::bad_value, "wanted", "a gradient is wanted or frozen");
  if (!checks.ok()) { return checks.answer(); }
  if (config.position_stride != 0 && config.position_stride < config.extent.width) {
    return {code::bad_stride, "position_stride", "is less than the width"};
  }
  if (config.recompute_calls < 0) { return {code::bad_value, "recompute_calls", "is negative"}; }
  if (config.gradients == gradient_home::dead_rows && config.rows == row_home::listed) {
    return {code::unsupported, "gradients", "listed rows cannot be overwritten"};
  }
  if (config.use == router_use::inference &&
      (config.gradients == gradient_home::dead_rows || config.mixes == mix_keeper::router)) {
    return {code::bad_value, "use", "inference keeps neither gradients nor mixes"};
  }
  return {};
}

//! The rows of a strided buffer are written one by one, so they must lie apart.
template <class T>
[[nodiscard]] status check_strided_rows(const router_config& config, T* base,
                                        std::int64_t row_stride,
                                        std::int64_t position_stride) noexcept
{
  const shape& extent = config.extent;
  const int num_rows = config.plan.num_rows();
  checker checks;
  checks.require(
      span_bytes(num_rows, row_stride, extent.width, static_cast<std::int64_t>(sizeof(T))) >= 0,
      code::bad_stride, "row_stride", "the memory spanned does not fit 64-bit offsets");
  const region first = checks.output(matrix{base, position_stride}, extent, "position_stride");
  // Every two rows lie as row 0 and another one do.
  for (int n = 1; checks.ok() && n < num_rows; ++n) {
    region row = first;
    row.begin += static_cast<std::uintptr_t>(n * row_stride) * sizeof(T);
    checks.require(!overlap(first, row), code::bad_stride, "row_stride, position_stride",
                   "two rows would share elements");
  }
  return checks.answer();
}

}  // namespace detail

template <class T>
status validate(const router_config& config) noexcept
{
  for (const element state : {config.call_state, config.row_state}) {
    if (state != element_of<T>::value && state != element_of<accumulate_t<T>>::value) {
      return {code::unsupported, "call_state, row_state",
              "must be the rows' type or the accumulation type"};
    }
  }
  for (const auto check_part : {detail::validate_extent, detail::validate_plan,
                                detail::validate_sites<T>, detail::validate_homes}) {
    if (const status outcome = check_part(config); !outcome.ok()) { return outcome; }
  }
  return {};
}

MHAR_NAMESPACE_END
