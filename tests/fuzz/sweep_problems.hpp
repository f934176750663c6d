// SPDX-License-Identifier: Apache-2.0
//! The problems of a sweep's verbs, as a fuzzer has to know them: what they read and write, and which fields there are to spoil.
#pragma once

#include "fuzz/spoilt.hpp"

#include <mhar/types/sweep.hpp>

#include <cstring>

namespace mhar_test {

//! Folded parameters of calls [0, num_calls).
template <class Accumulate>
void read_folded(problem_memory& memory, const mhar::folded_sites<Accumulate>& sites,
                 const mhar::shape& extent, std::int64_t num_calls)
{
  memory.read_values(sites.query, num_calls, extent.width);
  memory.read_values(sites.bias, num_calls, sites.bias_stride);
  memory.read_values(sites.null_source, num_calls, extent.width);
  memory.read_values(sites.null_logit, num_calls, extent.num_heads);
  memory.read_values(sites.gate, num_calls, 1);
  memory.read_values(sites.logit_gate, num_calls, 1);
}

template <class Accumulate>
void add_partials(problem_memory& memory, mhar::gradient_partials<Accumulate>& partials,
                  const mhar::shape& extent)
{
  const std::int64_t sets = std::int64_t{partials.num_chunks} * partials.num_calls;
  memory.write_values(partials.query, sets * extent.width);
  memory.write_values(partials.bias, sets * (partials.bias_stride + 1));
  memory.write_values(partials.null_source, sets * extent.width);
  memory.write_values(partials.gate, sets);
  memory.write_values(partials.output_norm, sets * extent.width);
}

//! Slots [0, first_slot + num_members) and their sums, of which those that the pass keeps are written.
template <class States, class Accumulate>
void add_states(problem_memory& memory, States& states, void** values, Accumulate*& sums,
                std::int64_t sums_per_slot, int num_members, mhar::pass_start start,
                mhar::pass_end end, const mhar::shape& extent)
{
  const bool finishes = end == mhar::pass_end::finish_first;
  if (finishes && start == mhar::pass_start::fresh && num_members == 1) { return; }
  const std::int64_t first = std::int64_t{states.first_slot} + (finishes ? 1 : 0);
  const std::int64_t slots = std::int64_t{states.first_slot} + num_members;
  memory.write_some(values, states.type, slots, states.slot_stride,
                    extent.num_positions * extent.width, first, slots);
  memory.write_some(reinterpret_cast<void**>(&sums), mhar::element_of<Accumulate>::value, slots,
                    sums_per_slot, sums_per_slot, first, slots);
}

template <class T>
void add_problem(problem_memory& memory, mhar::advance_problem<T>& problem)
{
  const mhar::shape& extent = problem.extent;
  const std::int64_t positions = extent.num_positions;
  const std::int64_t sums = positions * extent.num_heads;
  const std::int64_t end_row = std::int64_t{problem.first_row} + problem.num_rows;
  memory.read_rows(problem.rows, problem.first_row, problem.num_rows, extent);
  read_folded(memory, problem.sites, extent, std::int64_t{problem.first_call} + problem.num_calls);
  memory.write_some(reinterpret_cast<void**>(&problem.inverse_rms),
                    mhar::element_of<mhar::accumulate_t<T>>::value, end_row, positions, positions,
                    end_row - problem.num_new_rows, end_row);
  add_states(memory, problem.states, &problem.states.mix, problem.states.lse, sums,
             problem.num_calls, problem.start, problem.end, extent);
  if (problem.end == mhar::pass_end::keep_all) { return; }
  memory.read(mhar::const_matrix{problem.private_row, problem.private_stride}, extent);
  memory.write_values(problem.private_inverse_rms, problem.private_row == nullptr ? 0 : positions);
  memory.read(problem.stage.partial, extent);
  memory.read(problem.stage.gate, 1);
  memory.read(problem.stage.norm_weight, extent.width);
  memory.write(problem.outputs.y, extent);
  memory.write(problem.outputs.combined, extent);
  memory.write(problem.outputs.mix, extent);
  memory.write_values(problem.outputs.lse, sums);
}

template <class T>
void add_problem(problem_memory& memory, mhar::output_gradient_problem<T>& problem)
{
  const mhar::shape& extent = problem.extent;
  const std::int64_t sums = extent.num_positions * extent.num_heads;
  const mhar::const_matrix given[] = {problem.output_gradient, problem.combined_gradient,
                                      problem.combined, problem.mix};
  for (const mhar::const_matrix& view : given) { memory.read(view, extent); }
  memory.read_values(problem.lse, 1, sums);
  memory.read(problem.stage.norm_weight, extent.width);
  read_folded(memory, problem.sites, extent, std::int64_t{problem.call} + 1);
  memory.write(problem.call_gradient, extent);
  memory.write(problem.partial_gradient, extent);
  memory.write_values(problem.dot, sums);
  add_partials(memory, problem.partials, extent);
}

template <class T>
void add_problem(problem_memory& memory, mhar::gather_problem<T>& problem)
{
  const mhar::shape& extent = problem.extent;
  const std::int64_t positions = extent.num_positions;
  const std::int64_t sums = positions * extent.num_heads;
  const std::int64_t end_call = std::int64_t{problem.first_call} + problem.num_calls;
  memory.read_rows(problem.rows, problem.top_row - problem.num_rows + 1, problem.num_rows, extent);
  memory.read_rows(problem.call_gradients, problem.first_call, problem.num_calls, extent);
  memory.read_rows(problem.mixes, problem.first_call, problem.num_new_calls, extent);
  read_folded(memory, problem.sites, extent, end_call);
  memory.read_values(problem.inverse_rms, std::int64_t{problem.top_row} + 1, positions);
  memory.read_values(problem.lse, end_call, sums);
  memory.write_some(reinterpret_cast<void**>(&problem.dot),
                    mhar::element_of<mhar::accumulate_t<T>>::value, end_call, sums, sums,
                    problem.first_call, std::int64_t{problem.first_call} + problem.num_new_calls);
  add_states(memory, problem.states, &problem.states.gradient, problem.states.head_sum, positions,
             problem.num_rows, problem.start, problem.end, extent);
  if (problem.end == mhar::pass_end::finish_first) { memory.write(problem.row_gradient, extent); }
  add_partials(memory, problem.partials, extent);
}

//! The packed form must be absent: how long it is only its backend knows.
template <class T>
void add_problem(problem_memory& memory, mhar::fold_problem<T>& problem)
{
  const mhar::shape& extent = problem.extent;
  for (int c = 0; c < problem.num_calls; ++c) {
    const mhar::site_parameters& site = problem.sites[c];
    memory.read(site.query, extent.width);
    memory.read(site.norm_weight, extent.width);
    memory.read(site.null_source, extent.width);
    memory.read(site.bias, problem.num_sources[c]);
    if (problem.gates != nullptr) { memory.read(problem.gates[c], 1); }
  }
  auto& folded = problem.folded;
  const std::int64_t calls = problem.num_calls;
  memory.write_values(folded.query, calls * extent.width);
  memory.write_values(folded.bias, calls * folded.bias_stride);
  memory.write_values(folded.null_source, calls * extent.width);
  memory.write_values(folded.null_logit, calls * extent.num_heads);
  memory.write_values(folded.gate, calls);
  memory.write_values(folded.logit_gate, calls);
}

template <class T>
void add_problem(problem_memory& memory, mhar::reduce_problem<T>& problem)
{
  const mhar::shape& extent = problem.extent;
  const std::int64_t query = problem.queries_per_site * extent.width;
  for (int i = 0; i < problem.num_sites; ++i) {
    memory.read(problem.sites[i].query, query);
    memory.read(problem.sites[i].norm_weight, extent.width);
    auto& wanted = const_cast<mhar::site_gradients&>(problem.gradients[i]);
    memory.write(wanted.query, query);
    memory.write(wanted.norm_weight, extent.width);
    memory.write(wanted.bias, problem.num_bias == nullptr ? 0 : problem.num_bias[i]);
    memory.write(wanted.null_source, extent.width);
    memory.write(wanted.gate, 1);
    memory.write(wanted.output_norm_weight, extent.width);
  }
  const auto& partials = problem.partials;
  const std::int64_t sets = std::int64_t{partials.num_chunks} * partials.num_calls;
  memory.read_values(partials.query, sets, extent.width);
  memory.read_values(partials.bias, sets, partials.bias_stride + 1);
  memory.read_values(partials.null_source, sets, extent.width);
  memory.read_values(partials.gate, sets, 1);
  memory.read_values(partials.output_norm, sets, extent.width);
}
template <class T>
std::vector<mhar::site_gradients> own_lists(output_lists, mhar::reduce_problem<T>& problem)
{
  std::vector<mhar::site_gradients> list(problem.gradients, problem.gradients + problem.num_sites);
  problem.gradients = list.data();
  return list;
}

//! A field of the folded parameters. Their packed form is the backend's own, so nothing is said about it.
template <class Arena, class Accumulate>
void spoil_folded(spoiler<Arena>& with, mhar::folded_sites<Accumulate>& sites)
{
  switch (with.choices().integer(0, 7)) {
    case 0: with.move(sites.query); break;
    case 1: with.move(sites.bias); break;
    case 2: with.spoil_stride(sites.bias_stride); break;
    case 3: with.move(sites.null_source); break;
    case 4: with.move(sites.null_logit); break;
    case 5: with.move(sites.gate); break;
    case 6: with.move(sites.logit_gate); break;
    default: sites.rounding = static_cast<mhar::key_rounding>(with.choices().integer(0, 5)); break;
  }
}
template <class Arena>
void spoil_stage(spoiler<Arena>& with, mhar::output_stage& stage)
{
  switch (with.choices().integer(0, 4)) {
    case 0: with.spoil(stage.partial); break;
    case 1: with.spoil(stage.gate); break;
    case 2: stage.norm = static_cast<mhar::output_norm>(with.choices().integer(0, 3)); break;
    case 3: with.spoil(stage.norm_weight); break;
    default: with.spoil_number(stage.norm_eps); break;
  }
}
template <class Arena, class T>
void spoil_rows(spoiler<Arena>& with, mhar::const_rows<T>& rows)
{
  switch (with.choices().integer(0, 2)) {
    case 0: with.move(rows.base); break;
    case 1: with.spoil_stride(rows.row_stride); break;
    default: with.spoil_stride(rows.position_stride); break;
  }
}
template <class Arena, class Accumulate>
void spoil_partials(spoiler<Arena>& with, mhar::gradient_partials<Accumulate>& partials)
{
  switch (with.choices().integer(0, 7)) {
    case 0: with.move(partials.query); break;
    case 1: with.move(partials.bias); break;
    case 2: with.move(partials.null_source); break;
    case 3: with.move(partials.gate); break;
    case 4: with.move(partials.output_norm); break;
    case 5: with.spoil_stride(partials.bias_stride); break;
    case 6: with.spoil_index(partials.num_chunks); break;
    default: with.spoil_index(partials.num_calls); break;
  }
}
//! What kept states have in common.
template <class Arena, class States, class Accumulate>
void spoil_states(spoiler<Arena>& with, States& states, void*& values, Accumulate*& sums)
{
  switch (with.choices().integer(0, 4)) {
    case 0: with.move(values); break;
    case 1: with.move(sums); break;
    case 2: with.spoil_type(states.type); break;
    case 3: with.spoil_stride(states.slot_stride); break;
    default: with.spoil_index(states.first_slot); break;
  }
}
template <class Arena>
void spoil_pass(spoiler<Arena>& with, mhar::pass_start& start, mhar::pass_end& end)
{
  if (with.choices().once_in(2)) {
    start = static_cast<mhar::pass_start>(with.choices().integer(0, 2));
  }
  else {
    end = static_cast<mhar::pass_end>(with.choices().integer(0, 2));
  }
}

template <class Arena, class T>
void spoil_problem(spoiler<Arena>& with, mhar::advance_problem<T>& problem)
{
  switch (with.choices().integer(0, 19)) {
    case 0: with.spoil_extent(problem.extent); break;
    case 1: with.spoil_number(problem.eps); break;
    case 2: spoil_folded(with, problem.sites); break;
    case 3: with.spoil_index(problem.first_call); break;
    case 4: with.spoil_index(problem.num_calls); break;
    case 5: spoil_rows(with, problem.rows); break;
    case 6: with.spoil_index(problem.first_row); break;
    case 7: with.spoil_index(problem.num_rows); break;
    case 8: with.spoil_index(problem.num_new_rows); break;
    case 9: with.move(problem.inverse_rms); break;
    case 10: spoil_pass(with, problem.start, problem.end); break;
    case 11: spoil_states(with, problem.states, problem.states.mix, problem.states.lse); break;
    case 12: with.move(problem.private_row); break;
    case 13: with.spoil_stride(problem.private_stride); break;
    case 14: with.spoil_index(problem.private_bias); break;
    case 15: with.move(problem.private_inverse_rms); break;
    case 16: spoil_stage(with, problem.stage); break;
    case 17:
      with.spoil(with.choices().once_in(2) ? problem.outputs.y : problem.outputs.combined);
      break;
    case 18: with.spoil(problem.outputs.mix); break;
    default: with.move(problem.outputs.lse); break;
  }
}

template <class Arena, class T>
void spoil_problem(spoiler<Arena>& with, mhar::output_gradient_problem<T>& problem)
{
  switch (with.choices().integer(0, 12)) {
    case 0: with.spoil_extent(problem.extent); break;
    case 1: with.spoil_number(problem.eps); break;
    case 2: with.spoil_index(problem.call); break;
    case 3: spoil_folded(with, problem.sites); break;
    case 4: spoil_stage(with, problem.stage); break;
    case 5: with.spoil(problem.output_gradient); break;
    case 6: with.spoil(problem.combined_gradient); break;
    case 7: with.spoil(with.choices().once_in(2) ? problem.combined : problem.mix); break;
    case 8: with.move(problem.lse); break;
    case 9: with.spoil(problem.call_gradient); break;
    case 10: with.spoil(problem.partial_gradient); break;
    case 11: with.move(problem.dot); break;
    default: spoil_partials(with, problem.partials); break;
  }
}

template <class Arena, class T>
void spoil_problem(spoiler<Arena>& with, mhar::gather_problem<T>& problem)
{
  switch (with.choices().integer(0, 17)) {
    case 0: with.spoil_extent(problem.extent); break;
    case 1: spoil_folded(with, problem.sites); break;
    case 2: spoil_rows(with, problem.rows); break;
    case 3: with.move(problem.inverse_rms); break;
    case 4: with.spoil_index(problem.top_row); break;
    case 5: with.spoil_index(problem.num_rows); break;
    case 6: spoil_rows(with, problem.call_gradients); break;
    case 7: with.spoil_index(problem.first_call); break;
    case 8: with.spoil_index(problem.num_calls); break;
    case 9: with.spoil_index(problem.num_new_calls); break;
    case 10: spoil_rows(with, problem.mixes); break;
    case 11: with.move(problem.lse); break;
    case 12: with.move(problem.dot); break;
    case 13: with.spoil_index(problem.bias_entry); break;
    case 14: spoil_pass(with, problem.start, problem.end); break;
    case 15:
      spoil_states(with, problem.states, problem.states.gradient, problem.states.head_sum);
      break;
    case 16: with.spoil(problem.row_gradient); break;
    default: spoil_partials(with, problem.partials); break;
  }
}

//! One entry of a host array, which must be the problem's own.
template <class Arena, class Entry>
Entry& any_entry(spoiler<Arena>& with, const Entry* entries, int count)
{
  return const_cast<Entry&>(entries[count < 1 ? 0 : with.choices().integer(0, count - 1)]);
}
template <class Arena>
void spoil_site(spoiler<Arena>& with, mhar::site_parameters& site)
{
  switch (with.choices().integer(0, 6)) {
    case 0: with.spoil(site.query); break;
    case 1: with.spoil(site.norm_weight); break;
    case 2: with.spoil(site.bias); break;
    case 3: with.spoil(site.null_source); break;
    case 4: with.spoil_number(site.scale); break;
    case 5: with.spoil_number(site.eps); break;
    default: site.rounding = static_cast<mhar::key_rounding>(with.choices().integer(0, 5)); break;
  }
}
//! Never more than there are: host arrays are as long as they are.
template <class Arena>
void spoil_length(spoiler<Arena>& with, int& count)
{
  const int most = count;
  with.spoil_index(count);
  if (count > most) { count = most; }
}

template <class Arena, class T>
void spoil_problem(spoiler<Arena>& with, mhar::fold_problem<T>& problem)
{
  const int calls = problem.num_calls;
  switch (with.choices().integer(0, 6)) {
    case 0: with.spoil_extent(problem.extent); break;
    case 1: spoil_length(with, problem.num_calls); break;
    case 2: spoil_site(with, any_entry(with, problem.sites, calls)); break;
    case 3:
      if (problem.gates != nullptr) { with.spoil(any_entry(with, problem.gates, calls)); }
      break;
    case 4: with.spoil_index(any_entry(with, problem.num_sources, calls)); break;
    case 5: with.spoil_index(problem.num_rows); break;
    default: spoil_folded(with, problem.folded); break;
  }
}

template <class Arena, class T>
void spoil_problem(spoiler<Arena>& with, mhar::reduce_problem<T>& problem)
{
  const int sites = problem.num_sites;
  mhar::site_gradients& wanted = any_entry(with, problem.gradients, sites);
  const std::array<mhar::array*, 6> gradients{&wanted.query, &wanted.norm_weight,
                                              &wanted.bias,  &wanted.null_source,
                                              &wanted.gate,  &wanted.output_norm_weight};
  switch (with.choices().integer(0, 6)) {
    case 0: with.spoil_extent(problem.extent); break;
    case 1: spoil_length(with, problem.num_sites); break;
    case 2: with.spoil_index(problem.queries_per_site); break;
    case 3: spoil_site(with, any_entry(with, problem.sites, sites)); break;
    case 4: with.spoil_index(any_entry(with, problem.num_bias, sites)); break;
    case 5: spoil_partials(with, problem.partials); break;
    default: with.spoil(*gradients[static_cast<std::size_t>(with.choices().integer(0, 5))]); break;
  }
}

//! How many chunks partial sums have only a backend knows; other than that what validation accepts is served.
inline bool refuses_chunks(const mhar::status& outcome)
{
  return outcome.code == mhar::code::bad_shape &&
         std::strcmp(outcome.argument, "partials.num_chunks") == 0;
}

//! The verb of a problem, and the workspace that it needs.
template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::advance_problem<T>& problem, const Context& context)
{
  return Verbs::advance(problem, context);
}
template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::output_gradient_problem<T>& problem, const Context& context)
{
  return Verbs::output_gradient(problem, context);
}
template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::gather_problem<T>& problem, const Context& context)
{
  return Verbs::gather(problem, context);
}
template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::advance_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, problem.num_calls, problem.num_rows});
}
template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::output_gradient_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, 1, 1});
}
template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::gather_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, problem.num_rows, problem.num_calls});
}

template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::fold_problem<T>& problem, const Context& context)
{
  return Verbs::fold(problem, context);
}
template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::reduce_problem<T>& problem, const Context& context)
{
  return Verbs::reduce(problem, context);
}
template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::fold_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, 1, 1});
}
template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::reduce_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, 1, 1});
}

}  // namespace mhar_test
