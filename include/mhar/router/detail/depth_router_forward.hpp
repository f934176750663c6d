// SPDX-License-Identifier: Apache-2.0
//! depth_router: construction, memory, rows and the forward sweep.
#pragma once

#include <mhar/router/depth_router.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

MHAR_NAMESPACE_BEGIN

template <class Backend, class T>
depth_router<Backend, T>::depth_router(router_config config) : config_{std::move(config)}
{
  check(validate<T>(config_));
  static_cast<void>(detail::lay_out<Backend, T>(config_, nullptr, memory_));

  const auto per_site = static_cast<std::size_t>(config_.queries_per_site);
  const auto calls = static_cast<std::size_t>(num_calls());
  const bool gated =
      detail::any_site<T>(config_, [](const router_site& site) { return bool{site.stage.gate}; });
  for (std::size_t call = 0; call < calls; ++call) {
    const router_site& site = config_.sites[call / per_site];
    site_parameters parameters = site.parameters;
    const std::int64_t offset = static_cast<std::int64_t>(call % per_site) * config_.extent.width *
                                size_of(parameters.query.type);
    parameters.query.data = static_cast<const char*>(parameters.query.data) + offset;
    call_sites_.push_back(parameters);
    if (gated) { call_gates_.push_back(site.stage.gate); }
    num_sources_.push_back(detail::num_sources(config_, static_cast<int>(call)));
    if (call % per_site == 0) {
      sites_.push_back(site.parameters);
      num_bias_.push_back(num_sources_.back());
    }
  }
  if (config_.rows == row_home::listed) {
    row_list_.resize(static_cast<std::size_t>(total_rows()));
    position_stride_ =
        config_.position_stride == 0 ? config_.extent.width : config_.position_stride;
  }
  if (config_.gradients == gradient_home::dead_rows) {
    gradient_rows_ = detail::gradient_tenants(config_.plan.schedule);
    gradient_list_.resize(calls);
  }
  mix_list_.resize(calls);
  gather_parameters();
}

template <class Backend, class T>
status depth_router<Backend, T>::bind(void* block, std::size_t bytes) noexcept
{
  if (block == nullptr) { return {code::missing_argument, "block", "is required"}; }
  if (reinterpret_cast<std::uintptr_t>(block) % detail::block_arena::alignment != 0) {
    return {code::bad_alignment, "block", "must be aligned to 256 bytes"};
  }
  if (bytes < memory_.total) {
    return {code::small_workspace, "block", "is smaller than memory().total"};
  }
  router_memory unchanged;
  buffers_ = detail::lay_out<Backend, T>(config_, block, unchanged);
  block_ = detail::bytes_at(block, memory_.total);
  if (config_.rows == row_home::block) {
    row_base_ = buffers_.rows;
    row_stride_ = config_.extent.num_positions * config_.extent.width;
    position_stride_ = config_.extent.width;
  }
  phase_ = phase::bound;
  return {};
}

template <class Backend, class T>
status depth_router<Backend, T>::bind_rows(T* base, std::int64_t row_stride,
                                           std::int64_t position_stride) noexcept
{
  if (config_.rows != row_home::strided || phase_ == phase::unbound) {
    return {code::wrong_order, "bind_rows", "is for row_home::strided, after bind"};
  }
  if (base == nullptr && config_.extent.num_positions != 0) {
    return {code::missing_argument, "base", "is required"};
  }
  if (row_stride < config_.extent.width || position_stride < config_.extent.width) {
    return {code::bad_stride, "row_stride, position_stride", "is less than the width"};
  }
  if (const status apart = detail::check_strided_rows(config_, base, row_stride, position_stride);
      !apart.ok()) {
    return apart;
  }
  if (config_.gradients == gradient_home::dead_rows && position_stride != config_.extent.width) {
    return {code::unsupported, "position_stride",
            "gradients in dead rows need rows with position stride `width`"};
  }
  // Without positions there may be no buffer, but a row must still be told from a refusal.
  row_base_ = base == nullptr ? buffers_.rows : base;
  row_stride_ = base == nullptr ? 0 : row_stride;
  position_stride_ = position_stride;
  phase_ = phase::bound;
  return {};
}

template <class Backend, class T>
const_rows<T> depth_router<Backend, T>::rows() const noexcept
{
  if (config_.rows == row_home::listed) { return {nullptr, 0, position_stride_, row_list_.data()}; }
  return {row_base_, row_stride_, position_stride_, nullptr};
}

template <class Backend, class T>
typename Backend::context depth_router<Backend, T>::with_workspace(
    const context& where) const noexcept
{
  context inside = where;
  inside.workspace = buffers_.workspace;
  inside.workspace_bytes = buffers_.workspace_bytes;
  return inside;
}

template <class Backend, class T>
status depth_router<Backend, T>::begin_forward(const context& where) noexcept
{
  const bool rows_bound = config_.rows != row_home::strided || position_stride_ != 0;
  if (phase_ == phase::unbound || !rows_bound) {
    return {code::wrong_order, "begin_forward", "comes after bind (and bind_rows)"};
  }
  if (const status apart = check_block(); !apart.ok()) { return apart; }
  fold_problem<T> problem;
  problem.extent = config_.extent;
  problem.num_calls = num_calls();
  problem.sites = call_sites_.data();
  problem.gates = call_gates_.empty() ? nullptr : call_gates_.data();
  problem.num_sources = num_sources_.data();
  problem.num_rows = static_cast<int>(buffers_.folded.bias_stride);
  problem.folded = buffers_.folded;
  const status outcome = Backend::fold(problem, with_workspace(where));
  if (!outcome.ok()) { return outcome; }
  phase_ = phase::forward;
  num_rows_ = 0;
  next_call_ = 0;
  group_next_ = group_end_ = 0;
  intact_rows_ = total_rows();
  return {};
}

template <class Backend, class T>
T* depth_router<Backend, T>::append() noexcept
{
  if (phase_ != phase::forward || config_.rows == row_home::listed || num_rows_ == total_rows()) {
    return nullptr;
  }
  return row_base_ + row_stride_ * num_rows_++;
}

template <class Backend, class T>
status depth_router<Backend, T>::append(const T* row) noexcept
{
  if (phase_ != phase::forward || config_.rows != row_home::listed || num_rows_ == total_rows()) {
    return {code::wrong_order, "append", "is for the forward, row_home::listed and N rows"};
  }
  if (row == nullptr && config_.extent.num_positions != 0) {
    return {code::missing_argument, "row", "is required"};
  }
  // Refused here: a row that a call refuses would stay in the list.
  detail::checker checks;
  const detail::region read =
      checks.input(const_matrix{row, position_stride_}, config_.extent, "row");
  if (!checks.ok()) { return checks.answer(); }
  if (!read.empty() && block_.meets({read.begin, read.end()})) {
    return {code::aliasing, "row", "lies over the router's block"};
  }
  row_list_[static_cast<std::size_t>(num_rows_++)] = row;
  return {};
}

template <class Backend, class T>
auto depth_router<Backend, T>::private_inverse_rms(int call) const noexcept -> accumulate*
{
  if (!config_.plan.schedule.has_private(call)) { return nullptr; }
  const int slot = config_.use == router_use::training ? call : 0;
  return buffers_.private_inverse_rms + slot * config_.extent.num_positions;
}

//! The kept state of such a call is its mix already.
template <class Backend, class T>
bool depth_router<Backend, T>::finished_without_sources(int call) const noexcept
{
  const sweep_pass& pass = forward_plan().pass(call);
  return pass.start == pass_start::kept && pass.num_items == 0 &&
         !config_.plan.schedule.has_private(call);
}

template <class Backend, class T>
status depth_router<Backend, T>::check_call(int call, const call_inputs<T>& inputs,
                                            const route_outputs<T>& outputs) const noexcept
{
  const bool scheduled = config_.plan.schedule.has_private(call);
  if (scheduled && inputs.private_row == nullptr && config_.extent.num_positions != 0) {
    return {code::missing_argument, "private_row", "the schedule has one for this call"};
  }
  if (!scheduled && inputs.private_row != nullptr) {
    return {code::bad_value, "private_row", "the schedule has none for this call"};
  }
  if (outputs.weights != nullptr || outputs.inverse_rms != nullptr) {
    return {code::unsupported, "weights, inverse_rms", "a sweep writes neither"};
  }
  if (outputs.lse != nullptr && config_.use == router_use::training) {
    return {code::bad_value, "lse", "the router keeps it: see lse()"};
  }
  if (outputs.mix && keeps_mixes()) {
    return {code::bad_value, "mix", "the router keeps it: see mix()"};
  }
  const std::pair<const char*, const matrix&> written[] = {{"outputs.y", outputs.y},
                                                           {"outputs.combined", outputs.combined},
                                                           {"outputs.mix", outputs.mix}};
  for (const auto& [argument, output] : written) {
    if (const status apart = check_apart(output, rows_to_read(call), argument); !apart.ok()) {
      return apart;
    }
  }
  detail::checker checks;
  const std::int64_t sums = config_.extent.num_positions * config_.extent.num_heads;
  return check_apart(checks.values(outputs.lse, 1, 0, sums, "outputs.lse"), rows_to_read(call));
}

//! The pass that `opener` opens, for those of its calls that are in [first_call, end_call).
template <class Backend, class T>
advance_problem<T> depth_router<Backend, T>::pass_over_rows(int opener, int first_call,
                                                            int end_call) const noexcept
{
  const sweep_pass& pass = forward_plan().pass(opener);
  advance_problem<T> problem;
  problem.extent = config_.extent;
  problem.eps = config_.sites.front().parameters.eps;
  problem.sites = buffers_.folded;
  problem.first_call = first_call;
  problem.num_calls = (std::min)(opener + pass.num_members, end_call) - first_call;
  problem.rows = rows();
  problem.first_row = pass.first_item;
  problem.num_rows = pass.num_items;
  problem.inverse_rms = buffers_.inverse_rms;
  problem.start = pass.start;
  problem.end = pass_end::keep_all;
  problem.states.type = config_.call_state;
  problem.states.slot_stride = config_.extent.num_positions * config_.extent.width;
  return problem;
}

template <class Backend, class T>
void depth_router<Backend, T>::finish_with(advance_problem<T>& problem,
                                           const call_inputs<T>& inputs,
                                           const route_outputs<T>& outputs) const noexcept
{
  const int call = problem.first_call;
  problem.end = pass_end::finish_first;
  if (config_.plan.schedule.has_private(call)) {
    problem.private_row = inputs.private_row;
    problem.private_stride =
        inputs.private_stride == 0 ? config_.extent.width : inputs.private_stride;
    problem.private_bias = rows_of(call);
    problem.private_inverse_rms = private_inverse_rms(call);
  }
  problem.stage = detail::site_of(config_, call).stage;
  problem.stage.partial = inputs.partial;
  problem.outputs = outputs;
}

template <class Backend, class T>
status depth_router<Backend, T>::route(const context& where, int call, const call_inputs<T>& inputs,
                                       const route_outputs<T>& outputs) noexcept
{
  if (phase_ != phase::forward || call != next_call_ || call >= num_calls()) {
    return {code::wrong_order, "call", "is not the next call of a forward"};
  }
  if (num_rows_ < rows_of(call)) {
    return {code::wrong_order, "call", "reads rows that have not been appended"};
  }
  if (const status outcome = check_call(call, inputs, outputs); !outcome.ok()) { return outcome; }

  advance_problem<T> problem = pass_over_rows(call, call, num_calls());
  problem.num_new_rows = detail::is_sharded(config_) ? 0 : forward_plan().num_new_items(call);
  problem.states.mix = buffers_.call_mix;
  problem.states.lse = buffers_.call_lse;
  problem.states.first_slot = keeps_mixes() ? call : forward_plan().pass(call).first_slot;
  finish_with(problem, inputs, outputs);
  if (config_.use == router_use::training) {
    problem.outputs.lse =
        buffers_.lse + call * config_.extent.num_positions * config_.extent.num_heads;
  }
  if (keeps_mixes() && !finished_without_sources(call)) {
    char* const slot = static_cast<char*>(buffers_.call_mix) +
                       call * problem.states.slot_stride * size_of(config_.call_state);
    problem.outputs.mix = {slot, config_.call_state, config_.extent.width};
  }
  const status outcome = Backend::advance(problem, with_workspace(where));
  if (outcome.ok()) { ++next_call_; }
  return outcome;
}

template <class Backend, class T>
auto depth_router<Backend, T>::lse(int call) const noexcept -> const accumulate*
{
  const bool there = phase_ != phase::unbound && call >= 0 && call < num_calls();
  if (config_.use != router_use::training || !there) { return nullptr; }
  return buffers_.lse + call * config_.extent.num_positions * config_.extent.num_heads;
}

template <class Backend, class T>
const_matrix depth_router<Backend, T>::mix(int call) const noexcept
{
  if (!keeps_mixes() || phase_ == phase::unbound || call < 0 || call >= num_calls()) { return {}; }
  const std::int64_t elements = config_.extent.num_positions * config_.extent.width;
  return {
      static_cast<const char*>(buffers_.call_mix) + call * elements * size_of(config_.call_state),
      config_.call_state, config_.extent.width};
}

MHAR_NAMESPACE_END
