// SPDX-License-Identifier: Apache-2.0
//! A whole sweep run on the CPU by any tree of passes, and its comparison with its calls one by one.
#pragma once

#include "cpu/cpu_context.hpp"
#include "cpu/sweep_reference.hpp"

#include <mhar/cpu/backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace mhar_test {

template <class T>
class sweep_case
{
public:
  using accumulate = mhar::accumulate_t<T>;
  using verbs = mhar::cpu::backend;

  sweep_case(const sweep_options<T>& options, random_inputs& random, mhar::cpu::executor run = {})
      : data_{options, random},
        context_{verbs::workspace_bytes<T>({options.extent, data_.calls, data_.calls}), run}
  {
    fold();
  }

  //! Routes every call by random passes.
  void forward(random_inputs& random)
  {
    forward_node(random, 0, data_.calls, mhar::pass_start::fresh, 0);
    CHECK(state_mix_.guards_intact());
    CHECK(state_lse_.guards_intact());
  }

  //! Gives every row its gradient by random passes, and every site its parameters'.
  void backward(random_inputs& random)
  {
    zero_partials();
    for (int c = data_.calls - 1; c >= 0; --c) { run_output_gradient(c); }
    backward_node(random, data_.calls - 1, data_.calls, data_.calls, mhar::pass_start::fresh);
    for (int c = 0; data_.options.private_rows && c < data_.calls; ++c) { gather_private(c); }
    reduce();
    CHECK(context_.guards_intact());
  }

  //! Everything computed, for comparing runs bit by bit.
  [[nodiscard]] std::vector<unsigned char> bytes() const
  {
    std::vector<unsigned char> all;
    const auto append = [&](const auto& from) {
      const auto* const first = reinterpret_cast<const unsigned char*>(from.begin());
      all.insert(all.end(), first,
                 first + from.size() * static_cast<std::int64_t>(sizeof(*from.begin())));
    };
    append(y_);
    append(mix_);
    append(lse_);
    append(row_gradients_);
    append(private_gradients_);
    append(query_gradients_);
    append(bias_gradients_);
    append(null_gradients_);
    append(gate_gradients_);
    append(norm_gradients_);
    return all;
  }

  void check_against_reference() const
  {
    const sweep_reference<T> reference{data_};
    const auto& expected = reference.expected();
    // Every dl is a product over a head's columns, and its rounding is that of the terms.
    const double sums = std::sqrt(static_cast<double>(data_.positions * data_.width / data_.heads));
    reference.compare("y", y_, expected.y, 1);
    reference.compare("lse", lse_, expected.lse, 1);
    reference.compare("row gradients", row_gradients_, expected.rows, 1);
    reference.compare("private gradients", private_gradients_, expected.private_rows, 1);
    reference.compare("query", query_gradients_, expected.query, sums);
    reference.compare("norm weight", norm_weight_gradients_, expected.norm_weight, sums);
    reference.compare("bias", bias_gradients_, expected.bias, sums);
    reference.compare("null source", null_gradients_, expected.null_source, sums);
    // A sum over heads too, which an output norm makes cancel.
    reference.compare("gate", gate_gradients_, expected.gate, sums * std::sqrt(data_.heads));
    reference.compare("output norm", norm_gradients_, expected.norm, sums);
    CHECK(row_gradients_.guards_intact());
    CHECK(y_.guards_intact());
  }

private:
  void fold()
  {
    folded_.query = folded_query_.data();
    folded_.bias_stride = data_.calls + 1;
    if (data_.options.bias) { folded_.bias = folded_bias_.data(); }
    if (data_.options.null_source) {
      folded_.null_source = folded_null_.data();
      folded_.null_logit = folded_null_logit_.data();
    }
    folded_.gate = folded_gate_.data();
    folded_.logit_gate = folded_logit_gate_.data();
    folded_.rounding = data_.options.rounding;
    mhar::fold_problem<T> problem;
    problem.extent = data_.options.extent;
    problem.num_calls = data_.calls;
    problem.sites = data_.sites.data();
    problem.gates = data_.gate_arrays.data();
    problem.num_sources = data_.source_counts.data();
    problem.num_rows = data_.calls + 1;
    problem.folded = folded_;
    require(verbs::fold(problem, context_.get()));
  }

  static void require(const mhar::status& outcome)
  {
    REQUIRE_MESSAGE(outcome.ok(), outcome.argument, ": ", outcome.message);
  }

  //! Calls [first, first + count), whose states hold the rows below `base` (none of them when fresh).
  void forward_node(random_inputs& random, int first, int count, mhar::pass_start start, int base)
  {
    while (count > 0) {
      const int members = static_cast<int>(random.integer(1, count));
      advance(first, members, base, first + 1 - base, start);
      if (members > 1) {
        forward_node(random, first + 1, members - 1, mhar::pass_start::kept, first + 1);
      }
      first += members;
      count -= members;
    }
  }

  void advance(int first, int members, int base, int num_rows, mhar::pass_start start)
  {
    mhar::advance_problem<T> pass;
    pass.extent = data_.options.extent;
    pass.sites = folded_;
    pass.first_call = first;
    pass.num_calls = members;
    pass.rows = data_.row_view();
    pass.first_row = base;
    pass.num_rows = num_rows;
    // A row is new to the first pass that reads it.
    pass.num_new_rows = std::max(0, first + 1 - rows_seen_);
    rows_seen_ = std::max(rows_seen_, first + 1);
    pass.inverse_rms = inverse_rms_.data();
    pass.start = start;
    pass.states.mix = state_mix_.data();
    pass.states.type = data_.options.states;
    pass.states.slot_stride = data_.matrix_size();
    pass.states.lse = state_lse_.data();
    pass.states.first_slot = first;
    if (data_.options.private_rows) {
      pass.private_row = data_.private_rows.data() + first * data_.matrix_size();
      pass.private_stride = data_.width;
      pass.private_bias = first + 1;
      pass.private_inverse_rms = private_inverse_rms_.data() + first * data_.positions;
    }
    pass.stage = data_.stage(first);
    pass.outputs.y = {y_.data() + first * data_.matrix_size(), data_.width};
    pass.outputs.combined = {combined_.data() + first * data_.matrix_size(), data_.width};
    pass.outputs.mix = {mix_.data() + first * data_.matrix_size(), data_.width};
    pass.outputs.lse = lse_.data() + first * data_.positions * data_.heads;
    require(verbs::advance(pass, context_.get()));
  }

  void zero_partials()
  {
    partials_.num_chunks = verbs::num_chunks(data_.options.extent);
    partials_.num_calls = data_.calls;
    partials_.bias_stride = data_.calls + 1;
    const auto sized = [&](std::vector<accumulate>& values, std::int64_t size) {
      values.assign(static_cast<std::size_t>(partials_.num_chunks * data_.calls * size),
                    accumulate{0});
      return values.data();
    };
    partials_.query = sized(partial_query_, data_.width);
    if (data_.options.bias) { partials_.bias = sized(partial_bias_, partials_.bias_stride + 1); }
    if (data_.options.null_source) { partials_.null_source = sized(partial_null_, data_.width); }
    if (data_.options.gate) { partials_.gate = sized(partial_gate_, 1); }
    if (data_.options.norm == mhar::output_norm::rms) {
      partials_.output_norm = sized(partial_norm_, data_.width);
    }
  }

  void run_output_gradient(int call)
  {
    mhar::output_gradient_problem<T> problem;
    problem.extent = data_.options.extent;
    problem.call = call;
    problem.sites = folded_;
    problem.stage = data_.stage(call);
    problem.output_gradient = {data_.upstream.data() + call * data_.matrix_size(), data_.width};
    problem.combined = {combined_.data() + call * data_.matrix_size(), data_.width};
    problem.mix = {mix_.data() + call * data_.matrix_size(), data_.width};
    problem.lse = lse_.data() + call * data_.positions * data_.heads;
    problem.call_gradient = {call_gradients_.data() + call * data_.matrix_size(), data_.width};
    problem.dot = dot_.data() + call * data_.positions * data_.heads;
    problem.partials = partials_;
    require(verbs::output_gradient(problem, context_.get()));
    if (data_.options.dots_in_gather) {
      std::fill_n(dot_.data() + call * data_.positions * data_.heads, data_.positions * data_.heads,
                  std::numeric_limits<accumulate>::quiet_NaN());
    }
  }

  //! Rows top, top - 1, ..., whose states hold the calls from `bound` on.
  void backward_node(random_inputs& random, int top, int count, int bound, mhar::pass_start start)
  {
    while (count > 0) {
      const int members = static_cast<int>(random.integer(1, count));
      gather(top, members, bound - top, start);
      if (members > 1) { backward_node(random, top - 1, members - 1, top, mhar::pass_start::kept); }
      top -= members;
      count -= members;
    }
  }

  void gather(int top, int members, int num_calls, mhar::pass_start start)
  {
    mhar::gather_problem<T> pass = gather_pass(top, num_calls);
    pass.num_rows = members;
    pass.rows = data_.row_view();
    pass.inverse_rms = inverse_rms_.data();
    if (data_.options.dots_in_gather) {
      pass.num_new_calls = std::min(num_calls, std::max(0, calls_without_dot_ - top));
      calls_without_dot_ = std::min(calls_without_dot_, top);
    }
    pass.start = start;
    pass.states.gradient = state_mix_.data();
    pass.states.type = data_.options.states;
    pass.states.slot_stride = data_.matrix_size();
    pass.states.head_sum = state_head_sum_.data();
    pass.states.first_slot = data_.calls - 1 - top;
    pass.row_gradient = {row_gradients_.data() + top * data_.matrix_size(), data_.width};
    require(verbs::gather(pass, context_.get()));
  }

  void gather_private(int call)
  {
    mhar::gather_problem<T> pass = gather_pass(call, 1);
    pass.num_rows = 1;
    pass.rows = mhar::source_major(data_.private_rows.data(), data_.positions, data_.width);
    pass.inverse_rms = private_inverse_rms_.data();
    pass.bias_entry = 1;
    pass.row_gradient = {private_gradients_.data() + call * data_.matrix_size(), data_.width};
    require(verbs::gather(pass, context_.get()));
  }

  [[nodiscard]] mhar::gather_problem<T> gather_pass(int first_call, int num_calls)
  {
    mhar::gather_problem<T> pass;
    pass.extent = data_.options.extent;
    pass.sites = folded_;
    pass.top_row = first_call;
    pass.call_gradients =
        mhar::source_major<T>(call_gradients_.data(), data_.positions, data_.width);
    pass.first_call = first_call;
    pass.num_calls = num_calls;
    pass.mixes = mhar::source_major<T>(mix_.data(), data_.positions, data_.width);
    pass.lse = lse_.data();
    pass.dot = dot_.data();
    pass.partials = partials_;
    return pass;
  }

  void reduce()
  {
    std::vector<mhar::site_gradients> gradients;
    for (int c = 0; c < data_.calls; ++c) {
      mhar::site_gradients wanted;
      wanted.query = query_gradients_.data() + c * data_.width;
      wanted.norm_weight = norm_weight_gradients_.data() + c * data_.width;
      if (data_.options.bias) { wanted.bias = bias_gradients_.data() + c * data_.most_sources(); }
      if (data_.options.null_source) {
        wanted.null_source = null_gradients_.data() + c * data_.width;
      }
      if (data_.options.gate) { wanted.gate = gate_gradients_.data() + c; }
      if (data_.options.norm == mhar::output_norm::rms) {
        wanted.output_norm_weight = norm_gradients_.data() + c * data_.width;
      }
      gradients.push_back(wanted);
    }
    mhar::reduce_problem<T> problem;
    problem.extent = data_.options.extent;
    problem.num_sites = data_.calls;
    problem.sites = data_.sites.data();
    problem.gradients = gradients.data();
    problem.num_bias = data_.source_counts.data();
    problem.partials = partials_;
    require(verbs::reduce(problem, context_.get()));
  }

  sweep_arrays<T> data_;
  cpu_context context_;
  int rows_seen_ = 0;
  int calls_without_dot_ = data_.calls;

  template <class Value>
  using buffer = guarded<Value>;
  buffer<T> call_gradients_{data_.calls * data_.matrix_size()};
  buffer<T> mix_{data_.calls * data_.matrix_size()};
  buffer<T> combined_{data_.calls * data_.matrix_size()};
  buffer<T> y_{data_.calls * data_.matrix_size()};
  buffer<T> row_gradients_{data_.calls * data_.matrix_size()};
  buffer<T> private_gradients_{data_.options.private_rows ? data_.calls * data_.matrix_size() : 0};
  buffer<accumulate> lse_{data_.calls * data_.positions * data_.heads};
  buffer<accumulate> dot_{data_.calls * data_.positions * data_.heads};
  buffer<accumulate> inverse_rms_{data_.calls * data_.positions};
  buffer<accumulate> private_inverse_rms_{data_.calls * data_.positions};
  // Serves both element types and both directions.
  buffer<accumulate> state_mix_{data_.calls * data_.matrix_size()};
  buffer<accumulate> state_lse_{data_.calls * data_.positions * data_.heads};
  buffer<accumulate> state_head_sum_{data_.calls * data_.positions};

  mhar::folded_sites<accumulate> folded_;
  buffer<accumulate> folded_query_{data_.calls * data_.width};
  buffer<accumulate> folded_bias_{data_.calls * (data_.calls + 1)};
  buffer<accumulate> folded_null_{data_.calls * data_.width};
  buffer<accumulate> folded_null_logit_{std::int64_t{data_.calls} * data_.heads};
  buffer<accumulate> folded_gate_{data_.calls};
  buffer<accumulate> folded_logit_gate_{data_.calls};

  mhar::gradient_partials<accumulate> partials_;
  std::vector<accumulate> partial_query_;
  std::vector<accumulate> partial_bias_;
  std::vector<accumulate> partial_null_;
  std::vector<accumulate> partial_gate_;
  std::vector<accumulate> partial_norm_;

  buffer<accumulate> query_gradients_{data_.calls * data_.width};
  buffer<accumulate> norm_weight_gradients_{data_.calls * data_.width};
  buffer<accumulate> bias_gradients_{data_.options.bias ? data_.calls * data_.most_sources() : 0};
  buffer<accumulate> null_gradients_{data_.options.null_source ? data_.calls * data_.width : 0};
  buffer<accumulate> gate_gradients_{data_.options.gate ? data_.calls : 0};
  buffer<accumulate> norm_gradients_{
      data_.options.norm == mhar::output_norm::rms ? data_.calls * data_.width : 0};
};

}  // namespace mhar_test
