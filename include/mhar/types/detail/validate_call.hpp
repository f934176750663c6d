// SPDX-License-Identifier: Apache-2.0
//! Validation of a single routing call, its gradients, and the merge of partial results.
#pragma once

#include <mhar/types/call.hpp>
#include <mhar/types/detail/checker.hpp>
#include <mhar/types/detail/rows_apart.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace detail {

// Names that two checks must agree on; compared by address, so there is one object of each.
inline constexpr char partial_name[] = "stage.partial";
inline constexpr char y_name[] = "outputs.y";
inline constexpr char combined_name[] = "outputs.combined";
inline constexpr char mix_name[] = "outputs.mix";

template <class T, std::size_t Capacity>
void check_site(checker& checks, const site_parameters& site, const shape& extent,
                std::int64_t num_sources, region_list<Capacity>& inputs) noexcept
{
  checks.require(static_cast<bool>(site.query), code::missing_argument, "site.query",
                 "the query is required");
  checks.scale<accumulate_t<T>>(site.scale, "site.scale");
  checks.epsilon<accumulate_t<T>>(site.eps, "site.eps");
  checks.require(site.rounding == key_rounding::none || site.rounding == key_rounding::storage ||
                     site.rounding == key_rounding::storage_twice,
                 code::bad_value, "site.rounding", "unknown key rounding");
  inputs.add(checks.input(site.query, extent.width, "site.query"));
  inputs.add(checks.input(site.norm_weight, extent.width, "site.norm_weight"));
  inputs.add(checks.input(site.bias, num_sources, "site.bias"));
  inputs.add(checks.input(site.null_source, extent.width, "site.null_source"));
}

template <class T, std::size_t Capacity>
void check_stage(checker& checks, const output_stage& stage, const shape& extent,
                 region_list<Capacity>& inputs) noexcept
{
  checks.require(stage.norm == output_norm::none || stage.norm == output_norm::rms, code::bad_value,
                 "stage.norm", "unknown output norm");
  checks.require(stage.norm == output_norm::rms || !stage.norm_weight, code::bad_value,
                 "stage.norm_weight", "an output norm weight is given but there is no output norm");
  if (stage.norm == output_norm::rms) {
    checks.epsilon<accumulate_t<T>>(stage.norm_eps, "stage.norm_eps");
  }
  checks.require(stage.norm == output_norm::none || extent.full_width() == extent.width,
                 code::unsupported, "stage.norm",
                 "an output norm needs the whole width on one rank");
  inputs.add(checks.input(stage.partial, extent, partial_name));
  inputs.add(checks.input(stage.gate, 1, "stage.gate"));
  inputs.add(checks.input(stage.norm_weight, extent.width, "stage.norm_weight"));
}

template <class T, std::size_t Capacity>
void check_outputs(checker& checks, const route_outputs<T>& outputs, const shape& extent,
                   int num_rows, std::int64_t num_sources, region_list<Capacity>& written) noexcept
{
  checks.stored(outputs.y.mode, y_name);
  checks.stored(outputs.combined.mode, combined_name);
  checks.stored(outputs.mix.mode, mix_name);
  written.add(checks.output(outputs.y, extent, y_name));
  written.add(checks.output(outputs.combined, extent, combined_name));
  written.add(checks.output(outputs.mix, extent, mix_name));
  const std::int64_t positions = extent.num_positions;
  written.add(
      checks.values(outputs.lse, positions, extent.num_heads, extent.num_heads, "outputs.lse"));
  written.add(
      checks.values(outputs.inverse_rms, num_rows, positions, positions, "outputs.inverse_rms"));
  written.add(checks.values(outputs.weights, positions * extent.num_heads, num_sources, num_sources,
                            "outputs.weights"));
}

//! Counts of a self-contained call: the number of its sources, or 0 after a failed check.
inline std::int64_t check_counts(checker& checks, const shape& extent, int num_rows,
                                 const site_parameters& site) noexcept
{
  checks.extent(extent);
  checks.require(extent.full_width() == extent.width, code::unsupported, "extent.norm_width",
                 "a self-contained call sees the whole width; sharded heads are for the sweeps");
  checks.require(num_rows >= 0, code::bad_shape, "num_rows",
                 "the number of rows must not be negative");
  checks.require(num_rows < max_count, code::bad_shape, "num_rows",
                 "there must be fewer than 2^30 rows");
  const std::int64_t num_sources = std::int64_t{num_rows} + (site.null_source ? 1 : 0);
  checks.require(num_sources >= 1, code::bad_shape, "num_rows",
                 "there is no source: no row and no null source");
  return checks.ok() ? num_sources : 0;
}

}  // namespace detail

template <class T>
status validate(const route_problem<T>& problem, const workspace_view& workspace) noexcept
{
  detail::checker checks{workspace};
  detail::region_list<16> inputs;
  detail::region_list<8> outputs;
  const shape& extent = problem.extent;
  const std::int64_t num_sources =
      detail::check_counts(checks, extent, problem.num_rows, problem.site);
  if (!checks.ok()) { return checks.answer(); }
  checks.source_rows(problem.rows, 0, problem.num_rows, extent, "rows");
  detail::check_site<T>(checks, problem.site, extent, num_sources, inputs);
  detail::check_stage<T>(checks, problem.stage, extent, inputs);
  detail::check_outputs(checks, problem.outputs, extent, problem.num_rows, num_sources, outputs);
  const route_outputs<T>& wanted = problem.outputs;
  const bool any = wanted.y || wanted.combined || wanted.mix || wanted.lse != nullptr ||
                   wanted.inverse_rms != nullptr || wanted.weights != nullptr;
  checks.require(any || extent.num_positions == 0, code::missing_argument, detail::y_name,
                 "no output is wanted");
  checks.apart(
      inputs, outputs,
      {{detail::partial_name, detail::y_name}, {detail::partial_name, detail::combined_name}});
  checks.apart_from_rows(outputs, problem.rows, 0, problem.num_rows, extent);
  return checks.answer();
}

template <class T>
status validate(const route_gradient_problem<T>& problem, const workspace_view& workspace) noexcept
{
  detail::checker checks{workspace};
  detail::region_list<20> inputs;
  detail::region_list<8> outputs;
  const shape& extent = problem.extent;
  const std::int64_t positions = extent.num_positions;
  const std::int64_t num_sources =
      detail::check_counts(checks, extent, problem.num_rows, problem.site);
  if (!checks.ok()) { return checks.answer(); }
  checks.source_rows(problem.rows, 0, problem.num_rows, extent, "rows");
  detail::check_site<T>(checks, problem.site, extent, num_sources, inputs);
  detail::check_stage<T>(checks, problem.stage, extent, inputs);

  checks.require(problem.output_gradient || positions == 0, code::missing_argument,
                 "output_gradient", "the gradient of the output is required");
  inputs.add(checks.input(problem.output_gradient, extent, "output_gradient"));
  inputs.add(checks.input(problem.combined_gradient, extent, "combined_gradient"));
  inputs.add(checks.input(problem.mix, extent, "mix"));
  inputs.add(checks.input(problem.combined, extent, "combined"));
  inputs.add(checks.values(problem.lse, positions, extent.num_heads, extent.num_heads, "lse"));
  inputs.add(
      checks.values(problem.inverse_rms, problem.num_rows, positions, positions, "inverse_rms"));

  const site_gradients& wanted = problem.gradients;
  checks.require(!wanted.norm_weight || problem.site.norm_weight, code::missing_argument,
                 "site.norm_weight", "its gradient is wanted but there is no norm weight");
  checks.require(!wanted.bias || problem.site.bias, code::missing_argument, "site.bias",
                 "its gradient is wanted but there is no bias");
  checks.require(!wanted.null_source || problem.site.null_source, code::missing_argument,
                 "site.null_source", "its gradient is wanted but there is no null source");
  checks.require(!wanted.gate || problem.stage.gate, code::missing_argument, "stage.gate",
                 "its gradient is wanted but there is no gate");
  checks.require(!wanted.output_norm_weight || problem.stage.norm_weight, code::missing_argument,
                 "stage.norm_weight", "its gradient is wanted but there is no output norm weight");
  outputs.add(checks.output(wanted.query, extent.width, "gradients.query"));
  outputs.add(checks.output(wanted.norm_weight, extent.width, "gradients.norm_weight"));
  outputs.add(checks.output(wanted.bias, num_sources, "gradients.bias"));
  outputs.add(checks.output(wanted.null_source, extent.width, "gradients.null_source"));
  outputs.add(checks.output(wanted.gate, 1, "gradients.gate"));
  outputs.add(
      checks.output(wanted.output_norm_weight, extent.width, "gradients.output_norm_weight"));
  outputs.add(checks.output(problem.partial_gradient, extent, "partial_gradient"));
  checks.apart(inputs, outputs);
  checks.apart_from_rows(outputs, problem.rows, 0, problem.num_rows, extent);

  detail::check_row_gradients(checks, problem.row_gradients, problem.rows, problem.num_rows, extent,
                              inputs, outputs);
  return checks.answer();
}

template <class T>
status validate(const merge_problem<T>& problem, const workspace_view& workspace) noexcept
{
  detail::checker checks{workspace};
  detail::region_list<2> outputs;
  const shape& extent = problem.extent;
  checks.extent(extent);
  checks.require(problem.num_parts >= 1, code::bad_shape, "num_parts",
                 "there must be at least one part");
  if (!checks.ok()) { return checks.answer(); }
  const std::int64_t positions = extent.num_positions;
  const std::int64_t num_sums = positions * extent.num_heads;
  checks.source_rows(problem.parts, 0, problem.num_parts, extent, "parts");
  checks.require(problem.part_lse != nullptr || positions == 0, code::missing_argument, "part_lse",
                 "the parts' lse is required");
  checks.require(problem.num_parts == 1 || problem.part_lse_stride >= num_sums, code::bad_stride,
                 "part_lse_stride", "the lse of two parts would overlap");
  checks.require(
      problem.num_parts == 1 ||
          detail::span_bytes(problem.num_parts, problem.part_lse_stride, num_sums, 8) >= 0,
      code::bad_stride, "part_lse_stride", "the memory spanned does not fit 64-bit offsets");
  checks.stored(problem.mix.mode, "mix");
  checks.require(problem.mix || problem.lse != nullptr || positions == 0, code::missing_argument,
                 "mix", "no output is wanted");
  const detail::region mix = checks.output(problem.mix, extent, "mix");
  const detail::region lse = checks.values(problem.lse, 1, 0, num_sums, "lse");
  outputs.add(mix);
  outputs.add(lse);
  checks.apart(detail::region_list<1>{}, outputs);
  if (positions == 0) { return checks.answer(); }
  for (int part = 0; checks.ok() && part < problem.num_parts; ++part) {
    const detail::region rows = checks.input(
        const_matrix{problem.parts.row(part), problem.parts.position_stride}, extent, "parts");
    const std::int64_t first_sum = problem.num_parts == 1 ? 0 : part * problem.part_lse_stride;
    const detail::region sums =
        checks.values(problem.part_lse + first_sum, 1, 0, num_sums, "part_lse");
    checks.require(!overlap(mix, rows) || mix.same_as(rows), code::aliasing, "mix",
                   "the output overlaps a part without being exactly it");
    checks.require(!overlap(lse, sums) || lse.same_as(sums), code::aliasing, "lse",
                   "the output overlaps a part's lse without being exactly it");
    checks.require(!overlap(mix, sums), code::aliasing, "mix", "the output overlaps an input");
    checks.require(!overlap(lse, rows), code::aliasing, "lse", "the output overlaps an input");
  }
  return checks.answer();
}

MHAR_NAMESPACE_END
