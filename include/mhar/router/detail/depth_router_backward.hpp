// SPDX-License-Identifier: Apache-2.0
//! depth_router: the backward sweep.
#pragma once

#include <mhar/router/depth_router.hpp>

#include <algorithm>

MHAR_NAMESPACE_BEGIN

template <class Backend, class T>
status depth_router<Backend, T>::begin_backward(const context& where) noexcept
{
  const bool first = phase_ == phase::forward && next_call_ == num_calls();
  const bool again = phase_ == phase::done && intact_rows_ == total_rows();
  if (config_.use != router_use::training || !(first || again)) {
    return {code::wrong_order, "begin_backward",
            "comes after a training forward whose rows are all there"};
  }
  if (buffers_.partials_bytes != 0) {
    const status outcome =
        Backend::zero(buffers_.partials_start, buffers_.partials_bytes, with_workspace(where));
    if (!outcome.ok()) { return outcome; }
  }
  phase_ = phase::backward;
  last_call_ = num_calls();
  last_row_ = total_rows();
  pending_calls_ = 0;
  unread_calls_ = 0;
  private_due_ = -1;
  gathered_row_ = -1;
  for (std::size_t call = 0; call < gradient_list_.size(); ++call) {
    gradient_list_[call] = gradient_place(static_cast<int>(call));
  }
  return {};
}

template <class Backend, class T>
bool depth_router<Backend, T>::is_turn_of(int call) const noexcept
{
  return phase_ == phase::backward && call >= 0 && call == last_call_ - 1 && private_due_ < 0 &&
         last_row_ <= rows_of(call);
}

template <class Backend, class T>
T* depth_router<Backend, T>::gradient_place(int call) const noexcept
{
  if (phase_ == phase::unbound || config_.use != router_use::training || call < 0 ||
      call >= num_calls()) {
    return nullptr;
  }
  const std::int64_t elements = config_.extent.num_positions * config_.extent.width;
  if (config_.gradients == gradient_home::block) { return buffers_.gradients + call * elements; }
  const int row = gradient_rows_[static_cast<std::size_t>(call)];
  if (row < total_rows()) { return row_base_ + row * row_stride_; }
  const int before = config_.rows == row_home::block ? 0 : total_rows();
  return buffers_.rows + (row - before) * elements;
}

//! Gradients one call after the other with a constant stride wherever they lie so: a backend may
//! then read them in larger pieces.
template <class Backend, class T>
const_rows<T> depth_router<Backend, T>::call_gradients() const noexcept
{
  const std::int64_t elements = config_.extent.num_positions * config_.extent.width;
  if (config_.gradients == gradient_home::block) {
    return {buffers_.gradients, elements, config_.extent.width, nullptr};
  }
  const bool in_a_row =
      config_.rows == row_home::block &&
      std::adjacent_find(gradient_rows_.begin(), gradient_rows_.end(),
                         [](int one, int next) { return next != one + 1; }) == gradient_rows_.end();
  if (in_a_row) { return {gradient_list_.front(), elements, config_.extent.width, nullptr}; }
  return {nullptr, 0, config_.extent.width, gradient_list_.data()};
}

template <class Backend, class T>
matrix depth_router<Backend, T>::gradient_slot(int call) noexcept
{
  if (!is_turn_of(call)) { return {}; }
  if (config_.gradients == gradient_home::dead_rows) {
    intact_rows_ = (std::min)(intact_rows_, gradient_rows_[static_cast<std::size_t>(call)]);
  }
  return {gradient_place(call), config_.extent.width};
}

//! Nothing follows the mix, do = dy lies in its slot, and the next pass over calls can compute D
//! from the mix itself. A mix that would be refused then is left to output_gradient, which refuses
//! it now.
template <class Backend, class T>
bool depth_router<Backend, T>::needs_no_output_gradient(int call, const call_upstream& upstream,
                                                        const const_matrix& mix) const noexcept
{
  const output_stage& stage = detail::site_of(config_, call).stage;
  const const_matrix& dy = upstream.output_gradient;
  const bool plain = stage.norm == output_norm::none && buffers_.folded.null_source == nullptr &&
                     (!stage.gate || buffers_.partials.gate == nullptr);
  const bool alone = !upstream.combined_gradient && !upstream.partial_gradient &&
                     !config_.plan.schedule.has_private(call);
  const bool in_place = dy.data == gradient_place(call) && dy.type == element_of<T>::value &&
                        dy.position_stride == config_.extent.width;
  detail::checker checks;
  static_cast<void>(checks.input(mix, config_.extent, "mix"));
  const bool readable = checks.ok() && mix.type == element_of<T>::value &&
                        (pending_calls_ == 0 || mix.position_stride == mix_stride_);
  return plain && alone && in_place && readable;
}

template <class Backend, class T>
status depth_router<Backend, T>::run_output_gradient(const context& where, int call,
                                                     const call_upstream& upstream) noexcept
{
  const std::int64_t heads = config_.extent.num_positions * config_.extent.num_heads;
  output_gradient_problem<T> problem;
  problem.extent = config_.extent;
  problem.eps = config_.sites.front().parameters.eps;
  problem.call = call;
  problem.sites = buffers_.folded;
  problem.stage = detail::site_of(config_, call).stage;
  problem.output_gradient = upstream.output_gradient;
  problem.combined_gradient = upstream.combined_gradient;
  problem.combined = upstream.combined;
  problem.mix = upstream.mix;
  problem.lse = lse(call);
  problem.call_gradient = {gradient_place(call), config_.extent.width};
  problem.partial_gradient = upstream.partial_gradient;
  problem.dot = buffers_.dot + call * heads;
  problem.partials = buffers_.partials;
  return Backend::output_gradient(problem, with_workspace(where));
}

//! A pass computes D for the first calls of its range only: where a later call has its D, earlier
//! ones must not lack theirs.
template <class Backend, class T>
status depth_router<Backend, T>::settle_pending(const context& where) noexcept
{
  while (pending_calls_ > 0) {
    const int call = last_call_ + pending_calls_ - 1;
    call_upstream upstream;
    upstream.output_gradient = {gradient_place(call), config_.extent.width};
    upstream.mix = {mix_list_[static_cast<std::size_t>(call)], mix_stride_};
    const status outcome = run_output_gradient(where, call, upstream);
    if (!outcome.ok()) { return outcome; }
    --pending_calls_;
  }
  return {};
}

template <class Backend, class T>
status depth_router<Backend, T>::backward_call(const context& where, int call,
                                               const call_upstream& upstream) noexcept
{
  const bool empty = config_.extent.num_positions == 0;
  if (!is_turn_of(call)) {
    return {code::wrong_order, "call", "is not the next call of a backward"};
  }
  if (!upstream.output_gradient && !empty) {
    return {code::missing_argument, "output_gradient", "is required"};
  }
  if (!upstream.combined && !empty &&
      detail::site_of(config_, call).stage.norm == output_norm::rms) {
    return {code::missing_argument, "combined", "is required with an output norm"};
  }
  if (const status apart = check_apart(upstream.partial_gradient, last_row_, "partial_gradient");
      !apart.ok()) {
    return apart;
  }
  const const_matrix mixed = upstream.mix ? upstream.mix : mix(call);
  if (!mixed && !empty) {
    return {code::missing_argument, "mix", "is required unless the router keeps it"};
  }
  detail::checker checks;
  const matrix place{gradient_place(call), config_.extent.width};
  if (overlap(checks.input(mixed, config_.extent, "mix"),
              checks.input(place, config_.extent, "gradient_slot"))) {
    return {code::aliasing, "mix", "lies where the call's gradient is kept"};
  }
  if (needs_no_output_gradient(call, upstream, mixed)) {
    mix_list_[static_cast<std::size_t>(call)] = static_cast<const T*>(mixed.data);
    mix_stride_ = mixed.position_stride;
    ++pending_calls_;
  }
  else {
    if (const status outcome = settle_pending(where); !outcome.ok()) { return outcome; }
    call_upstream complete = upstream;
    complete.mix = mixed;
    const status outcome = run_output_gradient(where, call, complete);
    if (!outcome.ok()) { return outcome; }
    static_cast<void>(gradient_slot(call));  // what its place held is gone
    note_written(upstream.partial_gradient);
  }
  last_call_ = call;
  ++unread_calls_;
  if (config_.plan.schedule.has_private(call)) { private_due_ = call; }
  return {};
}

template <class Backend, class T>
status depth_router<Backend, T>::private_row_gradient(const context& where, int call,
                                                      const call_inputs<T>& inputs,
                                                      const matrix& gradient) noexcept
{
  if (phase_ != phase::backward || call < 0 || call != private_due_) {
    return {code::wrong_order, "call", "has no private row, or was not the call taken last"};
  }
  if (inputs.private_row == nullptr && config_.extent.num_positions != 0) {
    return {code::missing_argument, "private_row", "the schedule has one for this call"};
  }
  if (const status apart = check_apart(gradient, last_row_, "row_gradient"); !apart.ok()) {
    return apart;
  }
  gather_problem<T> problem;
  problem.extent = config_.extent;
  problem.sites = buffers_.folded;
  problem.rows.base = inputs.private_row;
  problem.rows.position_stride =
      inputs.private_stride == 0 ? config_.extent.width : inputs.private_stride;
  problem.inverse_rms = private_inverse_rms(call);
  problem.num_rows = 1;
  problem.call_gradients = call_gradients();
  problem.first_call = call;
  problem.num_calls = 1;
  problem.lse = buffers_.lse;
  problem.dot = buffers_.dot;
  problem.bias_entry = rows_of(call);
  problem.row_gradient = gradient;
  problem.partials = buffers_.partials;
  const status outcome = Backend::gather(problem, with_workspace(where));
  if (outcome.ok()) {
    private_due_ = -1;
    note_written(gradient);
    unread_calls_ = 0;
  }
  return outcome;
}

template <class Backend, class T>
status depth_router<Backend, T>::check_row(int row) const noexcept
{
  if (phase_ != phase::backward || row < 0 || row != last_row_ - 1) {
    return {code::wrong_order, "row", "is not the next row of a backward"};
  }
  if (private_due_ >= 0 || last_call_ > config_.plan.first_reader(row)) {
    return {code::wrong_order, "row", "is read by calls whose gradients have not been taken"};
  }
  return {};
}

template <class Backend, class T>
gather_problem<T> depth_router<Backend, T>::pass_over_calls(int row) const noexcept
{
  const int member = total_rows() - 1 - row;
  const sweep_pass& pass = backward_plan().pass(member);
  gather_problem<T> problem;
  problem.extent = config_.extent;
  problem.sites = buffers_.folded;
  problem.rows = rows();
  problem.inverse_rms = buffers_.inverse_rms;
  problem.top_row = row;
  problem.num_rows = pass.num_members;
  problem.call_gradients = call_gradients();
  problem.first_call = num_calls() - pass.first_item - pass.num_items;
  problem.num_calls = pass.num_items;
  problem.num_new_calls = pending_calls_;
  problem.mixes = {nullptr, 0, mix_stride_, mix_list_.data()};
  problem.lse = buffers_.lse;
  problem.dot = buffers_.dot;
  problem.start = pass.start;
  problem.states.gradient = buffers_.row_gradient;
  problem.states.type = config_.row_state;
  problem.states.slot_stride = config_.extent.num_positions * config_.extent.width;
  problem.states.head_sum = buffers_.head_sum;
  problem.states.first_slot = pass.first_slot + (detail::is_sharded(config_) ? 1 : 0);
  problem.partials = buffers_.partials;
  // Between the parts of a sharded pass a caller's kernels change what it keeps.
  if (member > 0 && !detail::is_sharded(config_)) {
    problem.num_unread_calls = unread_calls_;
    problem.has_old_states = backward_plan().pass(member - 1).num_members == 1;
  }
  return problem;
}

template <class Backend, class T>
status depth_router<Backend, T>::gather_row(const context& where, int row) noexcept
{
  if (const status outcome = check_row(row); !outcome.ok()) { return outcome; }
  if (!detail::is_sharded(config_) || gathered_row_ == row) {
    return {code::wrong_order, "gather_row", "is for sharded heads, once per row"};
  }
  gather_problem<T> problem = pass_over_calls(row);
  problem.end = pass_end::keep_all;
  const status outcome = Backend::gather(problem, with_workspace(where));
  if (outcome.ok()) {
    gathered_row_ = row;
    pending_calls_ = 0;
    unread_calls_ = 0;
  }
  return outcome;
}

template <class Backend, class T>
auto depth_router<Backend, T>::head_sum(int row) noexcept -> accumulate*
{
  if (phase_ != phase::backward || row < 0 || gathered_row_ != row) { return nullptr; }
  const int slot = backward_plan().pass(total_rows() - 1 - row).first_slot + 1;
  return buffers_.head_sum + slot * config_.extent.num_positions;
}

template <class Backend, class T>
status depth_router<Backend, T>::row_gradient(const context& where, int row,
                                              const matrix& gradient) noexcept
{
  if (const status outcome = check_row(row); !outcome.ok()) { return outcome; }
  if (detail::is_sharded(config_) && gathered_row_ != row) {
    return {code::wrong_order, "row",
            "sharded heads need gather_row and a sum over the ranks first"};
  }
  if (const status apart = check_apart(gradient, row + 1, "row_gradient"); !apart.ok()) {
    return apart;
  }
  gather_problem<T> problem = pass_over_calls(row);
  if (gathered_row_ == row) {
    problem.num_rows = 1;
    problem.num_calls = 0;
    problem.start = pass_start::kept;
  }
  problem.row_gradient = gradient;
  const status outcome = Backend::gather(problem, with_workspace(where));
  if (outcome.ok()) {
    last_row_ = row;
    pending_calls_ = 0;
    note_written(gradient);
    unread_calls_ = 0;
  }
  return outcome;
}

template <class Backend, class T>
status depth_router<Backend, T>::check_gradients(const site_gradients* gradients) const noexcept
{
  const auto& partials = buffers_.partials;
  for (std::size_t site = 0; gradients != nullptr && site < sites_.size(); ++site) {
    const site_gradients& asked = gradients[site];
    const site_parameters& given = config_.sites[site].parameters;
    const output_stage& stage = config_.sites[site].stage;
    if ((asked.query && partials.query == nullptr) ||
        (asked.norm_weight && (partials.query == nullptr || !given.norm_weight)) ||
        (asked.bias && (partials.bias == nullptr || !given.bias)) ||
        (asked.null_source && partials.null_source == nullptr) ||
        (asked.gate && (partials.gate == nullptr || !stage.gate)) ||
        (asked.output_norm_weight && (partials.output_norm == nullptr || !stage.norm_weight))) {
      return {code::bad_value, "gradients",
              "a gradient is asked for that was frozen at construction, or has no parameter"};
    }
  }
  return {};
}

template <class Backend, class T>
status depth_router<Backend, T>::finish_backward(const context& where,
                                                 const site_gradients* gradients) noexcept
{
  if (phase_ != phase::backward || last_row_ != 0 || last_call_ != 0 || private_due_ >= 0) {
    return {code::wrong_order, "finish_backward",
            "comes after the gradients of all calls and rows"};
  }
  if (const status outcome = check_gradients(gradients); !outcome.ok()) { return outcome; }
  int intact = intact_rows_;
  if (const status apart = check_gradients_apart(gradients, intact); !apart.ok()) { return apart; }
  if (gradients != nullptr) {
    reduce_problem<T> problem;
    problem.extent = config_.extent;
    problem.num_sites = static_cast<int>(sites_.size());
    problem.queries_per_site = config_.queries_per_site;
    problem.sites = sites_.data();
    problem.gradients = gradients;
    problem.num_bias = num_bias_.data();
    problem.partials = buffers_.partials;
    const status outcome = Backend::reduce(problem, with_workspace(where));
    if (!outcome.ok()) { return outcome; }
  }
  intact_rows_ = intact;
  phase_ = phase::done;
  return {};
}

MHAR_NAMESPACE_END
