// SPDX-License-Identifier: Apache-2.0
//! Validation of the verbs of a sweep.
#pragma once

#include <mhar/types/detail/sweep_regions.hpp>
#include <mhar/types/detail/validate_call.hpp>

#include <limits>

MHAR_NAMESPACE_BEGIN
namespace detail {

[[nodiscard]] constexpr bool is_index(std::int64_t value) noexcept
{
  return value >= 0 && value <= (std::numeric_limits<int>::max)();
}

template <class Accumulate>
void check_folded(checker& checks, const folded_sites<Accumulate>& sites,
                  const folded_names& names = names_as_sites) noexcept
{
  checks.require(sites.query != nullptr, code::missing_argument, names.query,
                 "the folded queries are required");
  checks.require(sites.gate != nullptr, code::missing_argument, names.gate,
                 "the folded gates are required");
  checks.require(sites.logit_gate != nullptr, code::missing_argument, names.logit_gate,
                 "the folded logit gates are required");
  checks.require((sites.null_source == nullptr) == (sites.null_logit == nullptr),
                 code::missing_argument, names.null_logit,
                 "a null source and its logits come together");
  checks.require(sites.rounding == key_rounding::none || sites.rounding == key_rounding::storage,
                 code::unsupported, names.rounding,
                 "keys that are rounded twice cannot be folded: route such calls one by one");
  checks.require(sites.bias == nullptr || is_index(sites.bias_stride), code::bad_stride,
                 names.bias_stride, "a number of biases must be between 0 and 2^31 - 1");
}

//! What has an inverse rms of its own needs the whole width on one rank.
inline void check_whole_width(checker& checks, const shape& extent, bool absent,
                              const char* argument) noexcept
{
  checks.require(absent || extent.full_width() == extent.width, code::unsupported, argument,
                 "its inverse rms needs the whole width on one rank");
}

//! Entries [first, first + count) of the sweep.
inline void check_range(checker& checks, int first, int count, const char* first_name,
                        const char* count_name) noexcept
{
  checks.require(first >= 0, code::bad_shape, first_name, "an index must not be negative");
  checks.require(count >= 0, code::bad_shape, count_name, "a range must not be negative");
  checks.require(std::int64_t{first} + count < max_count, code::bad_shape, count_name,
                 "the range ends at 2^30 or behind");
}

//! Members of a pass, and how much of the range it reads is new.
inline void check_pass(checker& checks, int num_members, int num_read, int num_new,
                       const char* members, const char* fresh) noexcept
{
  checks.require(num_members >= 1, code::bad_shape, members, "a pass serves at least one member");
  checks.require(num_new >= 0 && num_new <= num_read, code::bad_shape, fresh,
                 "more new entries than the range has");
}

//! Bias entries [first, first + count) of a call, where calls have biases.
inline void check_bias(checker& checks, const void* bias, std::int64_t stride, std::int64_t first,
                       std::int64_t count, const char* argument) noexcept
{
  checks.require(bias == nullptr || (first >= 0 && first + count <= stride), code::bad_shape,
                 argument, "a row has no entry in the biases of a call");
}

//! States are needed by every member but a finished fresh first one.
template <class States>
void check_states(checker& checks, const States& states, const void* sums, const void* values,
                  element accumulate, element storage, int num_members, pass_start start,
                  pass_end end, const shape& extent) noexcept
{
  checks.require(start == pass_start::fresh || start == pass_start::kept, code::bad_value, "start",
                 "unknown start");
  checks.require(end == pass_end::finish_first || end == pass_end::keep_all, code::bad_value, "end",
                 "unknown end");
  const bool first_has_slot = start == pass_start::kept || end == pass_end::keep_all;
  if (!first_has_slot && num_members == 1) { return; }
  checks.require(extent.num_positions == 0 || values != nullptr, code::missing_argument, "states",
                 "the states are required");
  checks.require(extent.num_positions == 0 || sums != nullptr, code::missing_argument, "states",
                 "the states' sums are required");
  checks.require(states.type == storage || states.type == accumulate, code::bad_value,
                 "states.type",
                 "states are kept in the rows' element type or in the accumulation type");
  checks.require(states.first_slot >= (first_has_slot ? 0 : -1), code::bad_shape,
                 "states.first_slot", "there is no such slot");
  const std::int64_t elements = extent.num_positions * extent.width;
  const std::int64_t slots = std::int64_t{states.first_slot} + num_members;
  checks.require(slots < max_count, code::bad_shape, "states.first_slot",
                 "there must be fewer than 2^30 slots");
  checks.require(slots <= 1 || states.slot_stride >= elements, code::bad_stride,
                 "states.slot_stride", "two slots would overlap");
  checks.require(slots <= 1 || span_bytes(slots, states.slot_stride, elements, 8) >= 0,
                 code::bad_stride, "states.slot_stride",
                 "the memory spanned does not fit 64-bit offsets");
}

template <class Accumulate>
void check_partials(checker& checks, const gradient_partials<Accumulate>& partials,
                    std::int64_t end_call) noexcept
{
  const bool any = partials.query != nullptr || partials.bias != nullptr ||
                   partials.null_source != nullptr || partials.gate != nullptr ||
                   partials.output_norm != nullptr;
  checks.require(!any || partials.num_chunks >= 1, code::bad_shape, "partials.num_chunks",
                 "there is no chunk");
  checks.require(!any || partials.num_calls >= end_call, code::bad_shape, "partials.num_calls",
                 "the partial sums cover fewer calls than the pass reads");
  checks.require(partials.bias == nullptr || is_index(partials.bias_stride), code::bad_stride,
                 "partials.bias_stride", "a number of biases must be between 0 and 2^31 - 1");
}

}  // namespace detail

template <class T>
status validate(const fold_problem<T>& problem) noexcept
{
  detail::checker checks;
  const shape& extent = problem.extent;
  const folded_sites<accumulate_t<T>>& folded = problem.folded;
  checks.extent(extent);
  checks.require(problem.num_calls >= 1, code::bad_shape, "num_calls",
                 "there must be at least one call");
  checks.require(problem.num_rows >= 0, code::bad_shape, "num_rows",
                 "the number of rows must not be negative");
  checks.require(problem.sites != nullptr, code::missing_argument, "sites",
                 "the sites are required");
  checks.require(problem.num_sources != nullptr, code::missing_argument, "num_sources",
                 "the number of sources of each call is required");
  detail::check_folded(checks, folded, detail::names_as_folded);
  checks.require(folded.bias == nullptr || folded.bias_stride >= problem.num_rows, code::bad_stride,
                 "folded.bias_stride", "the biases of two calls would overlap");
  detail::check_whole_width(checks, extent, folded.null_source == nullptr, "folded.null_source");
  if (!checks.ok()) { return checks.answer(); }
  detail::region_list<8> outputs;
  detail::add_folded(checks, folded, extent, problem.num_calls, outputs, detail::names_as_folded);
  checks.apart(detail::region_list<1>{}, outputs);
  for (int call = 0; checks.ok() && call < problem.num_calls; ++call) {
    const site_parameters& site = problem.sites[call];
    detail::region_list<8> inputs;
    checks.require(problem.num_sources[call] >= 1, code::bad_shape, "num_sources",
                   "a call has no source");
    detail::check_site<T>(checks, site, extent, problem.num_sources[call], inputs);
    checks.require(
        !(site.eps < problem.sites[0].eps || site.eps > problem.sites[0].eps), code::bad_value,
        "sites.eps",
        "the calls of a sweep share the inverse rms of a row, so they must agree on eps");
    checks.require(site.rounding == folded.rounding, code::bad_value, "sites.rounding",
                   "the calls of a sweep must agree on key rounding");
    checks.require(static_cast<bool>(site.null_source) == (folded.null_source != nullptr),
                   code::bad_value, "sites.null_source",
                   "the calls of a sweep must agree on having a null source");
    checks.require(!site.bias || folded.bias != nullptr, code::missing_argument, "folded.bias",
                   "a call has a bias but there is no place for it");
    const std::int64_t num_rows =
        std::int64_t{problem.num_sources[call]} - (site.null_source ? 1 : 0);
    checks.require(!site.bias || num_rows <= problem.num_rows, code::bad_shape, "num_rows",
                   "a call's bias has more entries than fold makes room for");
    if (problem.gates != nullptr) { inputs.add(checks.input(problem.gates[call], 1, "gates")); }
    checks.apart(inputs, outputs);
  }
  return checks.answer();
}

template <class T>
status validate(const advance_problem<T>& problem, const workspace_view& workspace) noexcept
{
  using accumulate = accumulate_t<T>;
  detail::checker checks{workspace};
  detail::region_list<16> inputs;
  detail::region_list<12> outputs;
  const shape& extent = problem.extent;
  const std::int64_t positions = extent.num_positions;
  checks.extent(extent);
  checks.epsilon<accumulate>(problem.eps, "eps");
  detail::check_folded(checks, problem.sites);
  detail::check_range(checks, problem.first_call, problem.num_calls, "first_call", "num_calls");
  detail::check_range(checks, problem.first_row, problem.num_rows, "first_row", "num_rows");
  detail::check_pass(checks, problem.num_calls, problem.num_rows, problem.num_new_rows, "num_calls",
                     "num_new_rows");
  detail::check_bias(checks, problem.sites.bias, problem.sites.bias_stride, problem.first_row,
                     problem.num_rows, "sites.bias_stride");
  if (!checks.ok()) { return checks.answer(); }
  detail::check_states(checks, problem.states, problem.states.lse, problem.states.mix,
                       element_of<accumulate>::value, element_of<T>::value, problem.num_calls,
                       problem.start, problem.end, extent);
  if (!checks.ok()) { return checks.answer(); }
  checks.require(problem.num_new_rows == 0 || extent.full_width() == extent.width,
                 code::unsupported, "num_new_rows",
                 "the inverse rms of a row whose width is sharded must be given");
  checks.source_rows(problem.rows, problem.first_row, problem.num_rows, extent, "rows");
  checks.require(problem.inverse_rms != nullptr || problem.num_rows == 0 || positions == 0,
                 code::missing_argument, "inverse_rms", "the rows' inverse rms is required");
  if (problem.end == pass_end::finish_first) {
    // Without positions the private row may be null.
    const bool any_source = problem.start == pass_start::kept || problem.num_rows > 0 ||
                            problem.sites.null_source != nullptr ||
                            problem.private_row != nullptr || positions == 0;
    checks.require(any_source, code::bad_shape, "num_rows",
                   "the first call would finish without a source");
    detail::check_stage<T>(checks, problem.stage, extent, inputs);
    checks.require(problem.outputs.weights == nullptr, code::unsupported, "outputs.weights",
                   "a sweep does not keep the weights: route the call alone to see them");
    checks.require(problem.outputs.inverse_rms == nullptr, code::bad_value, "outputs.inverse_rms",
                   "a sweep writes the inverse rms to problem.inverse_rms");
    detail::check_outputs(checks, problem.outputs, extent, 0, 1, outputs);
  }
  else {
    checks.require(problem.private_row == nullptr, code::bad_value, "private_row",
                   "a private row belongs to a call that is finished");
  }
  if (problem.private_row != nullptr) {
    detail::check_whole_width(checks, extent, false, "private_row");
    inputs.add(checks.input(const_matrix{problem.private_row, problem.private_stride}, extent,
                            "private_row"));
    checks.require(problem.private_inverse_rms != nullptr || positions == 0, code::missing_argument,
                   "private_inverse_rms", "a private row's inverse rms is written");
    checks.require(problem.private_bias >= 0, code::bad_value, "private_bias",
                   "an index must not be negative");
    detail::check_bias(checks, problem.sites.bias, problem.sites.bias_stride, problem.private_bias,
                       1, "private_bias");
    outputs.add(checks.values(problem.private_inverse_rms, 1, 0, positions, "private_inverse_rms"));
  }
  if (!checks.ok() || positions == 0) { return checks.answer(); }
  detail::add_folded(checks, problem.sites, extent,
                     std::int64_t{problem.first_call} + problem.num_calls, inputs);
  detail::add_states(checks, problem.states, problem.states.mix, problem.states.lse,
                     positions * extent.num_heads, "states.lse", problem.num_calls, problem.start,
                     problem.end, extent, inputs, outputs);
  const detail::region known =
      checks.values(problem.inverse_rms, std::int64_t{problem.first_row} + problem.num_rows,
                    positions, positions, "inverse_rms");
  if (problem.num_new_rows > 0) { outputs.add(known); }
  else {
    inputs.add(known);
  }
  checks.apart(inputs, outputs,
               {{detail::partial_name, detail::y_name},
                {detail::partial_name, detail::combined_name},
                {detail::states_name, detail::mix_name}});
  checks.apart_from_rows(outputs, problem.rows, problem.first_row, problem.num_rows, extent);
  return checks.answer();
}

template <class T>
status validate(const output_gradient_problem<T>& problem, const workspace_view& workspace) noexcept
{
  using accumulate = accumulate_t<T>;
  static constexpr char dy_name[] = "output_gradient";
  static constexpr char do_name[] = "call_gradient";
  detail::checker checks{workspace};
  detail::region_list<16> inputs;
  detail::region_list<8> outputs;
  const shape& extent = problem.extent;
  const bool some = extent.num_positions > 0;
  checks.extent(extent);
  checks.epsilon<accumulate>(problem.eps, "eps");
  detail::check_range(checks, problem.call, 1, "call", "call");
  detail::check_folded(checks, problem.sites);
  if (!checks.ok()) { return checks.answer(); }
  detail::check_stage<T>(checks, problem.stage, extent, inputs);
  detail::check_partials(checks, problem.partials, std::int64_t{problem.call} + 1);
  detail::check_whole_width(checks, extent, problem.sites.null_source == nullptr,
                            "sites.null_source");
  checks.require(problem.output_gradient || !some, code::missing_argument, dy_name,
                 "the gradient of the output is required");
  checks.require(problem.mix || !some, code::missing_argument, "mix", "the call's mix is required");
  checks.require(problem.combined || problem.stage.norm == output_norm::none || !some,
                 code::missing_argument, "combined", "the output before its norm is required");
  checks.require(problem.lse != nullptr || problem.sites.null_source == nullptr || !some,
                 code::missing_argument, "lse", "the call's lse is required with a null source");
  checks.require(problem.call_gradient || !some, code::missing_argument, do_name,
                 "the call's gradient is written");
  checks.require(problem.dot != nullptr || !some, code::missing_argument, "dot", "D is written");
  checks.require(!problem.call_gradient || problem.call_gradient.type == element_of<T>::value,
                 code::bad_value, do_name, "the call's gradient is kept in the rows' element type");
  checks.stored(problem.call_gradient.mode, do_name);
  inputs.add(checks.input(problem.output_gradient, extent, dy_name));
  inputs.add(checks.input(problem.combined_gradient, extent, "combined_gradient"));
  inputs.add(checks.input(problem.combined, extent, "combined"));
  inputs.add(checks.input(problem.mix, extent, "mix"));
  inputs.add(checks.values(problem.lse, 1, 0, extent.num_positions * extent.num_heads, "lse"));
  outputs.add(checks.output(problem.call_gradient, extent, do_name));
  outputs.add(checks.output(problem.partial_gradient, extent, "partial_gradient"));
  outputs.add(checks.values(problem.dot, 1, 0, extent.num_positions * extent.num_heads, "dot"));
  if (!checks.ok() || !some) { return checks.answer(); }
  detail::add_folded(checks, problem.sites, extent, std::int64_t{problem.call} + 1, inputs);
  detail::add_partials(checks, problem.partials, extent.width, outputs);
  checks.apart(inputs, outputs, {{dy_name, do_name}});
  return checks.answer();
}

template <class T>
status validate(const gather_problem<T>& problem, const workspace_view& workspace) noexcept
{
  using accumulate = accumulate_t<T>;
  detail::checker checks{workspace};
  const shape& extent = problem.extent;
  const std::int64_t positions = extent.num_positions;
  const bool some = positions > 0;
  checks.extent(extent);
  detail::check_folded(checks, problem.sites);
  detail::check_range(checks, problem.top_row, 1, "top_row", "top_row");
  detail::check_range(checks, problem.first_call, problem.num_calls, "first_call", "num_calls");
  detail::check_pass(checks, problem.num_rows, problem.num_calls, problem.num_new_calls, "num_rows",
                     "num_new_calls");
  if (!checks.ok()) { return checks.answer(); }
  const int bottom_row = problem.top_row - (problem.num_rows - 1);
  checks.require(bottom_row >= 0, code::bad_shape, "num_rows", "the pass reaches below row 0");
  checks.require(detail::is_index(std::int64_t{problem.bias_entry} + bottom_row) &&
                     detail::is_index(std::int64_t{problem.bias_entry} + problem.top_row),
                 code::bad_shape, "bias_entry", "a row's entry must be between 0 and 2^31 - 1");
  const auto entries_fit = [&](const accumulate* bias, std::int64_t stride) {
    detail::check_bias(checks, bias, stride, std::int64_t{problem.bias_entry} + bottom_row,
                       problem.num_rows, "bias_entry");
  };
  entries_fit(problem.sites.bias, problem.sites.bias_stride);
  entries_fit(problem.partials.bias, problem.partials.bias_stride);
  detail::check_states(checks, problem.states, problem.states.head_sum, problem.states.gradient,
                       element_of<accumulate>::value, element_of<T>::value, problem.num_rows,
                       problem.start, problem.end, extent);
  detail::check_partials(checks, problem.partials,
                         std::int64_t{problem.first_call} + problem.num_calls);
  if (!checks.ok()) { return checks.answer(); }
  checks.source_rows(problem.rows, bottom_row, problem.num_rows, extent, "rows");
  checks.source_rows(problem.call_gradients, problem.first_call, problem.num_calls, extent,
                     "call_gradients");
  checks.source_rows(problem.mixes, problem.first_call, problem.num_new_calls, extent, "mixes");
  checks.require(problem.inverse_rms != nullptr || !some, code::missing_argument, "inverse_rms",
                 "the rows' inverse rms is required");
  checks.require(problem.lse != nullptr || problem.num_calls == 0 || !some, code::missing_argument,
                 "lse", "the calls' lse is required");
  checks.require(problem.dot != nullptr || problem.num_calls == 0 || !some, code::missing_argument,
                 "dot", "the calls' D is required");
  checks.require(
      problem.end == pass_end::keep_all || !problem.row_gradient || problem.num_calls == 0 ||
          extent.full_width() == extent.width,
      code::unsupported, "end",
      "where heads are sharded a row is finished after its head sums are added over ranks");
  if (!checks.ok() || !some) { return checks.answer(); }
  detail::region_list<12> inputs;
  detail::region_list<12> outputs;
  const std::int64_t num_sums = positions * extent.num_heads;
  const std::int64_t end_call = std::int64_t{problem.first_call} + problem.num_calls;
  detail::add_folded(checks, problem.sites, extent, end_call, inputs);
  inputs.add(checks.values(problem.inverse_rms, std::int64_t{problem.top_row} + 1, positions,
                           positions, "inverse_rms"));
  inputs.add(checks.values(problem.lse, end_call, num_sums, num_sums, "lse"));
  const detail::region dots = checks.values(problem.dot, end_call, num_sums, num_sums, "dot");
  if (problem.num_new_calls > 0) { outputs.add(dots); }
  else {
    inputs.add(dots);
  }
  detail::add_states(checks, problem.states, problem.states.gradient, problem.states.head_sum,
                     positions, "states.head_sum", problem.num_rows, problem.start, problem.end,
                     extent, inputs, outputs);
  if (problem.end == pass_end::finish_first) {
    outputs.add(checks.output(problem.row_gradient, extent, "row_gradient"));
  }
  detail::add_partials(checks, problem.partials, extent.width, outputs);
  checks.apart(inputs, outputs);
  checks.apart_from_rows(outputs, problem.rows, bottom_row, problem.num_rows, extent);
  checks.apart_from_rows(outputs, problem.call_gradients, problem.first_call, problem.num_calls,
                         extent);
  checks.apart_from_rows(outputs, problem.mixes, problem.first_call, problem.num_new_calls, extent);
  return checks.answer();
}

MHAR_NAMESPACE_END
