// SPDX-License-Identifier: Apache-2.0
//! What the verbs of a sweep read and what they write, as a fuzzer has to know it.
#pragma once

#include "fuzz/problem_memory.hpp"
#include "fuzz/spoilt.hpp"

#include <mhar/types/sweep.hpp>

#include <vector>

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
  // The stride of what is absent may be anything.
  if (partials.bias != nullptr) {
    memory.write_values(partials.bias, sets * (partials.bias_stride + 1));
  }
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
  if (folded.bias != nullptr) { memory.write_values(folded.bias, calls * folded.bias_stride); }
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
  if (partials.bias != nullptr) {
    memory.read_values(partials.bias, sets, partials.bias_stride + 1);
  }
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

}  // namespace mhar_test
