// SPDX-License-Identifier: Apache-2.0
//! The fields that there are to spoil in the problems of a sweep's verbs.
#pragma once

#include "fuzz/spoiler.hpp"

#include <mhar/types/sweep.hpp>

#include <array>

namespace mhar_test {

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

}  // namespace mhar_test
