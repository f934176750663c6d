// SPDX-License-Identifier: Apache-2.0
//! depth_router: what a caller's outputs may not lie over. A verb knows the memory of its own pass only; the router knows what
//! later passes will read.
#pragma once

#include <mhar/router/depth_router.hpp>

#include <algorithm>
#include <cstdint>

MHAR_NAMESPACE_BEGIN

//! Where parameters are, sorted, those that touch as one.
template <class Backend, class T>
void depth_router<Backend, T>::gather_parameters()
{
  const std::int64_t width = config_.extent.width;
  for (std::size_t site = 0; site < sites_.size(); ++site) {
    const site_parameters& mine = sites_[site];
    const output_stage& stage = config_.sites[site].stage;
    const auto add = [this](const const_array& values, std::int64_t count) {
      if (values) {
        parameters_.push_back(
            detail::bytes_at(values.data, static_cast<std::size_t>(count * size_of(values.type))));
      }
    };
    add(mine.query, width * config_.queries_per_site);
    add(mine.norm_weight, width);
    add(mine.bias, num_bias_[site]);
    add(mine.null_source, width);
    add(stage.gate, 1);
    add(stage.norm_weight, width);
  }
  const auto first = parameters_.begin();
  std::sort(first, parameters_.end(),
            [](const detail::interval& a, const detail::interval& b) { return a.begin < b.begin; });
  std::size_t size = 0;
  for (const detail::interval& each : parameters_) {
    if (size > 0 && each.begin <= parameters_[size - 1].end) {
      parameters_[size - 1].end = (std::max)(parameters_[size - 1].end, each.end);
    }
    else {
      parameters_[size++] = each;
    }
  }
  parameters_.resize(size);
}

template <class Backend, class T>
bool depth_router<Backend, T>::meets_parameter(const detail::interval& memory) const noexcept
{
  const auto after =
      std::lower_bound(parameters_.begin(), parameters_.end(), memory.end,
                       [](const detail::interval& a, std::uintptr_t end) { return a.begin < end; });
  return after != parameters_.begin() && (after - 1)->meets(memory);
}

//! The block overlaps neither parameters nor a buffer of rows.
template <class Backend, class T>
status depth_router<Backend, T>::check_block() const noexcept
{
  if (meets_parameter(block_)) { return {code::aliasing, "block", "lies over a parameter"}; }
  const shape& extent = config_.extent;
  if (config_.rows != row_home::strided || extent.num_positions == 0 || total_rows() == 0) {
    return {};
  }
  const std::int64_t elements = (total_rows() - 1) * row_stride_ +
                                (extent.num_positions - 1) * position_stride_ + extent.width;
  const auto rows = detail::bytes_at(row_base_, static_cast<std::size_t>(elements) * sizeof(T));
  if (block_.meets(rows)) { return {code::aliasing, "base", "the rows lie over the block"}; }
  return {};
}

//! Those that the call reads, and that calls after it have read when it is computed again; what was appended and not yet read may
//! be the place of a row to come.
template <class Backend, class T>
int depth_router<Backend, T>::rows_to_read(int call) const noexcept
{
  int rows = rows_of(call);
  if (phase_ == phase::forward && next_call_ > 0) {
    rows = (std::max)(rows, rows_of(next_call_ - 1));
  }
  if (phase_ == phase::backward) { rows = (std::max)(rows, last_row_); }
  return rows;
}

//! What is wrong with the output itself is left to the verb.
template <class Backend, class T>
status depth_router<Backend, T>::check_apart(const matrix& output, int num_rows,
                                             const char* argument) const noexcept
{
  detail::checker checks;
  const detail::region written = checks.output(output, config_.extent, argument);
  return checks.ok() ? check_apart(written, num_rows) : status{};
}

//! Nothing may be written over what will be read again: parameters, what the router keeps in its block, gradients in the places of
//! dead rows, mixes of calls that have no D yet, and rows [0, num_rows).
template <class Backend, class T>
status depth_router<Backend, T>::check_apart(const detail::region& written,
                                             int num_rows) const noexcept
{
  if (written.empty()) { return {}; }
  const detail::interval bounds{written.begin, written.end()};
  if (detail::interval{block_.begin + memory_.rows, block_.end}.meets(bounds)) {
    return {code::aliasing, written.name, "lies over what the router keeps in its block"};
  }
  if (meets_parameter(bounds)) { return {code::aliasing, written.name, "lies over a parameter"}; }
  const bool has_tenants =
      phase_ == phase::backward && config_.gradients == gradient_home::dead_rows;
  detail::checker checks;
  for (int call = last_call_; has_tenants && call < num_calls(); ++call) {
    const matrix place{gradient_place(call), config_.extent.width};
    if (overlap(written, checks.input(place, config_.extent, "gradient_slot"))) {
      return {code::aliasing, written.name, "lies over a gradient that is still to be read"};
    }
  }
  const int end_pending = phase_ == phase::backward ? last_call_ + pending_calls_ : 0;
  for (int call = last_call_; call < end_pending; ++call) {
    const const_matrix mixed{mix_list_[static_cast<std::size_t>(call)], mix_stride_};
    if (overlap(written, checks.input(mixed, config_.extent, "mix"))) {
      return {code::aliasing, written.name, "lies over a mix that the next row_gradient reads"};
    }
  }
  if (first_row_under(written, num_rows) < num_rows) {
    return {code::aliasing, written.name, "lies over a row that is still to be read"};
  }
  return {};
}

//! The first of rows [0, num_rows) that shares memory with `written`; num_rows where none does.
template <class Backend, class T>
int depth_router<Backend, T>::first_row_under(const detail::region& written,
                                              int num_rows) const noexcept
{
  if (num_rows == 0 || written.empty()) { return num_rows; }
  const const_rows<T> all = rows();
  detail::checker checks;
  detail::region row =
      checks.input(const_matrix{all.row(0), all.position_stride}, config_.extent, "rows");
  if (!checks.ok() || row.empty()) { return num_rows; }
  if (all.list == nullptr) {
    const auto to_last = static_cast<std::uintptr_t>((num_rows - 1) * all.row_stride) * sizeof(T);
    if (written.end() <= row.begin || row.end() + to_last <= written.begin) { return num_rows; }
  }
  for (int n = 0; n < num_rows; ++n) {
    row.begin = reinterpret_cast<std::uintptr_t>(all.row(n));
    if (overlap(written, row)) { return n; }
  }
  return num_rows;
}

//! An output may lie over a dead row, which then is not read again: neither by another backward nor by a recompute.
template <class Backend, class T>
void depth_router<Backend, T>::note_written(const matrix& output) noexcept
{
  if (phase_ != phase::backward && phase_ != phase::done) { return; }
  detail::checker checks;
  intact_rows_ = first_row_under(checks.output(output, config_.extent, "output"), intact_rows_);
}

template <class Backend, class T>
void depth_router<Backend, T>::note_written(const route_outputs<T>& outputs) noexcept
{
  note_written(outputs.y);
  note_written(outputs.combined);
  note_written(outputs.mix);
}

//! The gradients of parameters, which another backward may follow. Rows are dead by now: rows [0, intact) are left.
template <class Backend, class T>
status depth_router<Backend, T>::check_gradients_apart(const site_gradients* gradients,
                                                       int& intact) const noexcept
{
  const std::int64_t width = config_.extent.width;
  // Of all rows together: sites may be many, and a list is gone through row by row.
  detail::interval bounds;
  detail::checker checks;
  for (int n = 0; n < intact; ++n) {
    const const_matrix row{rows().row(n), rows().position_stride};
    const detail::region read = checks.input(row, config_.extent, "rows");
    if (read.empty()) { continue; }
    bounds = bounds.empty() ? detail::interval{read.begin, read.end()}
                            : detail::interval{(std::min)(bounds.begin, read.begin),
                                               (std::max)(bounds.end, read.end())};
  }
  for (std::size_t site = 0; gradients != nullptr && site < sites_.size(); ++site) {
    const site_gradients& asked = gradients[site];
    const auto meets = [&](const array& values, std::int64_t count) {
      if (!values) { return false; }
      const std::int64_t bytes = count * size_of(values.type);
      const auto place = detail::bytes_at(values.data, static_cast<std::size_t>(bytes));
      if (bounds.meets(place)) {
        intact = first_row_under({"gradients", place.begin, 1, 0, bytes, values.type}, intact);
      }
      return block_.meets(place) || meets_parameter(place);
    };
    if (meets(asked.query, width * config_.queries_per_site) || meets(asked.norm_weight, width) ||
        meets(asked.bias, num_bias_[site]) || meets(asked.null_source, width) ||
        meets(asked.gate, 1) || meets(asked.output_norm_weight, width)) {
      return {code::aliasing, "gradients", "one lies over a parameter or the router's block"};
    }
  }
  return {};
}

MHAR_NAMESPACE_END
