// SPDX-License-Identifier: Apache-2.0
//! depth_router: calls once more, by replaying the passes that they took part in.
#pragma once

#include <mhar/router/depth_router.hpp>

MHAR_NAMESPACE_BEGIN

template <class Backend, class T>
bool depth_router<Backend, T>::are_routed(int first, int count) const noexcept
{
  const bool begun = phase_ == phase::forward || phase_ == phase::backward || phase_ == phase::done;
  return begun && first >= 0 && count >= 1 && count <= next_call_ - first;
}

template <class Backend, class T>
status depth_router<Backend, T>::check_recompute(int first, int count) const noexcept
{
  if (!are_routed(first, count)) { return {code::wrong_order, "call", "has not been routed"}; }
  if (count > config_.recompute_calls) {
    return {code::wrong_order, "call", "more calls than router_config::recompute_calls allows"};
  }
  if (rows_of(first + count - 1) > intact_rows_) {
    return {code::wrong_order, "call", "reads rows that gradients have overwritten"};
  }
  return {};
}

//! Passes that calls before the group opened and that some of the group took part in. Nobody is
//! finished by them; what the group's own calls opened is left to recompute.
template <class Backend, class T>
status depth_router<Backend, T>::begin_recompute(const context& where, int first,
                                                 int count) noexcept
{
  if (const status outcome = check_recompute(first, count); !outcome.ok()) { return outcome; }
  group_next_ = group_end_ = 0;
  for (int opener = forward_plan().first_pass(first); opener < first;
       opener = forward_plan().next_pass(first, opener)) {
    advance_problem<T> problem = pass_over_rows(opener, first, first + count);
    problem.states.mix = buffers_.scratch_mix;
    problem.states.lse = buffers_.scratch_lse;
    problem.states.first_slot = 0;
    const status outcome = Backend::advance(problem, with_workspace(where));
    if (!outcome.ok()) { return outcome; }
  }
  group_first_ = group_next_ = first;
  group_end_ = first + count;
  return {};
}

//! The pass that the group's next call opened.
template <class Backend, class T>
status depth_router<Backend, T>::replay(const context& where, int call,
                                        const call_inputs<T>& inputs,
                                        const route_outputs<T>& outputs) noexcept
{
  advance_problem<T> problem = pass_over_rows(call, call, group_end_);
  problem.states.mix = buffers_.scratch_mix;
  problem.states.lse = buffers_.scratch_lse;
  problem.states.first_slot = call - group_first_;
  finish_with(problem, inputs, outputs);
  const status outcome = Backend::advance(problem, with_workspace(where));
  if (outcome.ok()) {
    ++group_next_;
    note_written(outputs);
  }
  return outcome;
}

template <class Backend, class T>
status depth_router<Backend, T>::recompute(const context& where, int call,
                                           const call_inputs<T>& inputs,
                                           const route_outputs<T>& outputs) noexcept
{
  const bool in_group = call == group_next_ && call < group_end_;
  const bool allowed = are_routed(call, 1) && config_.recompute_calls > 0;
  if (allowed && !in_group && keeps_mixes() && finished_without_sources(call)) {
    // What the router keeps of such a call is the very state that it ended with: no row is read.
    if (const status outcome = check_call(call, inputs, outputs); !outcome.ok()) { return outcome; }
    advance_problem<T> problem = pass_over_rows(call, call, call + 1);
    problem.states.mix = buffers_.call_mix;
    problem.states.lse = buffers_.call_lse;
    problem.states.first_slot = call;
    finish_with(problem, inputs, outputs);
    const status outcome = Backend::advance(problem, with_workspace(where));
    if (outcome.ok()) { note_written(outputs); }
    return outcome;
  }
  if (const status outcome = check_recompute(call, 1); !outcome.ok()) { return outcome; }
  if (const status outcome = check_call(call, inputs, outputs); !outcome.ok()) { return outcome; }
  if (!in_group) {
    if (const status outcome = begin_recompute(where, call, 1); !outcome.ok()) { return outcome; }
  }
  return replay(where, call, inputs, outputs);
}

MHAR_NAMESPACE_END
