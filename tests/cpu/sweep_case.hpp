// SPDX-License-Identifier: Apache-2.0
//! A whole sweep of S calls, call c over the rows 0..c and perhaps a private one, run on the CPU by any tree of passes, and what
//! the reference makes of each call alone.
#pragma once

#include "cpu/cpu_context.hpp"
#include "support/guarded.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

#include <mhar/cpu/backend.hpp>
#include <mhar/reference/route.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace mhar_test {

template <class T>
struct sweep_options
{
  mhar::shape extent{5, 24, 3, 0};
  int num_calls = 6;
  bool null_source = false;
  bool bias = false;
  bool gate = false;
  bool partial = false;
  bool private_rows = false;
  mhar::output_norm norm = mhar::output_norm::none;
  mhar::key_rounding rounding = mhar::key_rounding::none;
  mhar::element states = mhar::element_of<mhar::accumulate_t<T>>::value;
  bool token_major = false;
  bool dots_in_gather = false;  //!< D is left to gather instead of output_gradient's
};

template <class T>
class sweep_case
{
public:
  using accumulate = mhar::accumulate_t<T>;
  using verbs = mhar::cpu::backend;

  sweep_case(const sweep_options<T>& options, random_inputs& random, mhar::cpu::executor run = {})
      : options_{options},
        positions_{options.extent.num_positions},
        width_{options.extent.width},
        heads_{options.extent.num_heads},
        calls_{options.num_calls},
        context_{verbs::workspace_bytes<T>({options.extent, calls_, calls_}), run}
  {
    make_inputs(random);
    fold();
  }

  //! Routes every call by random passes.
  void forward(random_inputs& random)
  {
    forward_node(random, 0, calls_, mhar::pass_start::fresh, 0);
    CHECK(state_mix_.guards_intact());
    CHECK(state_lse_.guards_intact());
  }

  //! Gives every row its gradient by random passes, and every site its parameters'.
  void backward(random_inputs& random)
  {
    poison_partials();
    for (int c = calls_ - 1; c >= 0; --c) { run_output_gradient(c); }
    backward_node(random, calls_ - 1, calls_, calls_, mhar::pass_start::fresh);
    for (int c = 0; options_.private_rows && c < calls_; ++c) { gather_private(c); }
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

  void check_against_reference()
  {
    for (int c = 0; c < calls_; ++c) { add_reference(c); }
    compare_arrays("y", y_, expected_.y, 1);
    compare_arrays("lse", lse_, expected_.lse, 1);
    compare_arrays("row gradients", row_gradients_, expected_.rows, 1);
    compare_arrays("private gradients", private_gradients_, expected_.private_rows, 1);
    // Every dl is a product over a head's columns, and its rounding is that of the terms.
    const double sums = std::sqrt(static_cast<double>(positions_ * width_ / heads_));
    compare_arrays("query", query_gradients_, expected_.query, sums);
    compare_arrays("norm weight", norm_weight_gradients_, expected_.norm_weight, sums);
    compare_arrays("bias", bias_gradients_, expected_.bias, sums);
    compare_arrays("null source", null_gradients_, expected_.null_source, sums);
    // A sum over heads too, which an output norm makes cancel.
    compare_arrays("gate", gate_gradients_, expected_.gate, sums * std::sqrt(heads_));
    compare_arrays("output norm", norm_gradients_, expected_.norm, sums);
    CHECK(row_gradients_.guards_intact());
    CHECK(y_.guards_intact());
  }

private:
  [[nodiscard]] std::int64_t matrix_size() const { return positions_ * width_; }
  [[nodiscard]] int has_null() const { return options_.null_source ? 1 : 0; }
  [[nodiscard]] int num_sources(int call) const
  {
    return call + 1 + has_null() + (options_.private_rows ? 1 : 0);
  }
  [[nodiscard]] int most_sources() const { return calls_ + 2; }
  [[nodiscard]] mhar::const_rows<T> row_view() const
  {
    return options_.token_major ? mhar::token_major(rows_.data(), calls_, width_)
                                : mhar::source_major(rows_.data(), positions_, width_);
  }

  void make_inputs(random_inputs& random)
  {
    random.fill(rows_.data(), rows_.size());
    random.fill(private_rows_.data(), private_rows_.size());
    random.fill(partial_.data(), partial_.size());
    random.fill(upstream_.data(), upstream_.size());
    random.fill(queries_.data(), queries_.size(),
                2 / std::sqrt(static_cast<double>(width_ / heads_)));
    random.fill(nulls_.data(), nulls_.size());
    random.fill(biases_.data(), biases_.size());
    // Not near 0, where an output norm would magnify every rounding.
    for (int c = 0; c < calls_; ++c) { gates_[c] = static_cast<float>(random.uniform(0.5, 1.5)); }
    random.fill(norm_weights_.data(), norm_weights_.size());
    for (int c = 0; c < calls_; ++c) {
      mhar::site_parameters site;
      site.query = queries_.data() + c * width_;
      site.norm_weight = norm_weights_.data() + c * width_;
      if (options_.bias) { site.bias = biases_.data() + c * most_sources(); }
      if (options_.null_source) { site.null_source = nulls_.data() + c * width_; }
      site.scale = 0.8;
      site.rounding = options_.rounding;
      sites_.push_back(site);
      gate_arrays_.push_back(options_.gate ? mhar::const_array{gates_.data() + c}
                                           : mhar::const_array{});
      num_sources_.push_back(num_sources(c));
    }
  }

  [[nodiscard]] mhar::output_stage stage(int call) const
  {
    mhar::output_stage stage;
    if (options_.partial) { stage.partial = {partial_.data() + call * matrix_size(), width_}; }
    stage.gate = gate_arrays_[static_cast<std::size_t>(call)];
    stage.norm = options_.norm;
    if (options_.norm == mhar::output_norm::rms) {
      stage.norm_weight = norm_weights_.data() + call * width_;
    }
    return stage;
  }

  void fold()
  {
    folded_.query = folded_query_.data();
    folded_.bias_stride = calls_ + 1;
    if (options_.bias) { folded_.bias = folded_bias_.data(); }
    if (options_.null_source) {
      folded_.null_source = folded_null_.data();
      folded_.null_logit = folded_null_logit_.data();
    }
    folded_.gate = folded_gate_.data();
    folded_.logit_gate = folded_logit_gate_.data();
    folded_.rounding = options_.rounding;
    mhar::fold_problem<T> problem;
    problem.extent = options_.extent;
    problem.num_calls = calls_;
    problem.sites = sites_.data();
    problem.gates = gate_arrays_.data();
    problem.num_sources = num_sources_.data();
    problem.num_rows = calls_ + 1;
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
    pass.extent = options_.extent;
    pass.sites = folded_;
    pass.first_call = first;
    pass.num_calls = members;
    pass.rows = row_view();
    pass.first_row = base;
    pass.num_rows = num_rows;
    // A row is new to the first pass that reads it.
    pass.num_new_rows = std::max(0, first + 1 - rows_seen_);
    rows_seen_ = std::max(rows_seen_, first + 1);
    pass.inverse_rms = inverse_rms_.data();
    pass.start = start;
    pass.states.mix = state_mix_.data();
    pass.states.type = options_.states;
    pass.states.slot_stride = matrix_size();
    pass.states.lse = state_lse_.data();
    pass.states.first_slot = first;
    if (options_.private_rows) {
      pass.private_row = private_rows_.data() + first * matrix_size();
      pass.private_stride = width_;
      pass.private_bias = first + 1;
      pass.private_inverse_rms = private_inverse_rms_.data() + first * positions_;
    }
    pass.stage = stage(first);
    pass.outputs.y = {y_.data() + first * matrix_size(), width_};
    pass.outputs.combined = {combined_.data() + first * matrix_size(), width_};
    pass.outputs.mix = {mix_.data() + first * matrix_size(), width_};
    pass.outputs.lse = lse_.data() + first * positions_ * heads_;
    require(verbs::advance(pass, context_.get()));
  }

  void poison_partials()
  {
    partials_.num_chunks = verbs::num_chunks(options_.extent);
    partials_.num_calls = calls_;
    partials_.bias_stride = calls_ + 1;
    const auto sized = [&](std::vector<accumulate>& values, std::int64_t size) {
      values.assign(static_cast<std::size_t>(partials_.num_chunks * calls_ * size), accumulate{0});
      return values.data();
    };
    partials_.query = sized(partial_query_, width_);
    if (options_.bias) { partials_.bias = sized(partial_bias_, partials_.bias_stride + 1); }
    if (options_.null_source) { partials_.null_source = sized(partial_null_, width_); }
    if (options_.gate) { partials_.gate = sized(partial_gate_, 1); }
    if (options_.norm == mhar::output_norm::rms) {
      partials_.output_norm = sized(partial_norm_, width_);
    }
  }

  void run_output_gradient(int call)
  {
    mhar::output_gradient_problem<T> problem;
    problem.extent = options_.extent;
    problem.call = call;
    problem.sites = folded_;
    problem.stage = stage(call);
    problem.output_gradient = {upstream_.data() + call * matrix_size(), width_};
    problem.combined = {combined_.data() + call * matrix_size(), width_};
    problem.mix = {mix_.data() + call * matrix_size(), width_};
    problem.lse = lse_.data() + call * positions_ * heads_;
    problem.call_gradient = {call_gradients_.data() + call * matrix_size(), width_};
    problem.dot = dot_.data() + call * positions_ * heads_;
    problem.partials = partials_;
    require(verbs::output_gradient(problem, context_.get()));
    if (options_.dots_in_gather) {
      std::fill_n(dot_.data() + call * positions_ * heads_, positions_ * heads_,
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
    pass.rows = row_view();
    pass.inverse_rms = inverse_rms_.data();
    if (options_.dots_in_gather) {
      pass.num_new_calls = std::min(num_calls, std::max(0, calls_without_dot_ - top));
      calls_without_dot_ = std::min(calls_without_dot_, top);
    }
    pass.start = start;
    pass.states.gradient = state_mix_.data();
    pass.states.type = options_.states;
    pass.states.slot_stride = matrix_size();
    pass.states.head_sum = state_head_sum_.data();
    pass.states.first_slot = calls_ - 1 - top;
    pass.row_gradient = {row_gradients_.data() + top * matrix_size(), width_};
    require(verbs::gather(pass, context_.get()));
  }

  void gather_private(int call)
  {
    mhar::gather_problem<T> pass = gather_pass(call, 1);
    pass.num_rows = 1;
    pass.rows = mhar::source_major(private_rows_.data(), positions_, width_);
    pass.inverse_rms = private_inverse_rms_.data();
    pass.bias_entry = 1;
    pass.row_gradient = {private_gradients_.data() + call * matrix_size(), width_};
    require(verbs::gather(pass, context_.get()));
  }

  [[nodiscard]] mhar::gather_problem<T> gather_pass(int first_call, int num_calls)
  {
    mhar::gather_problem<T> pass;
    pass.extent = options_.extent;
    pass.sites = folded_;
    pass.top_row = first_call;
    pass.call_gradients = mhar::source_major<T>(call_gradients_.data(), positions_, width_);
    pass.first_call = first_call;
    pass.num_calls = num_calls;
    pass.mixes = mhar::source_major<T>(mix_.data(), positions_, width_);
    pass.lse = lse_.data();
    pass.dot = dot_.data();
    pass.partials = partials_;
    return pass;
  }

  void reduce()
  {
    std::vector<mhar::site_gradients> gradients;
    for (int c = 0; c < calls_; ++c) {
      mhar::site_gradients wanted;
      wanted.query = query_gradients_.data() + c * width_;
      wanted.norm_weight = norm_weight_gradients_.data() + c * width_;
      if (options_.bias) { wanted.bias = bias_gradients_.data() + c * most_sources(); }
      if (options_.null_source) { wanted.null_source = null_gradients_.data() + c * width_; }
      if (options_.gate) { wanted.gate = gate_gradients_.data() + c; }
      if (options_.norm == mhar::output_norm::rms) {
        wanted.output_norm_weight = norm_gradients_.data() + c * width_;
      }
      gradients.push_back(wanted);
    }
    mhar::reduce_problem<T> problem;
    problem.extent = options_.extent;
    problem.num_sites = calls_;
    problem.sites = sites_.data();
    problem.gradients = gradients.data();
    problem.num_bias = num_sources_.data();
    problem.partials = partials_;
    require(verbs::reduce(problem, context_.get()));
  }

  //! Call c alone, in double; gradients of shared rows add up.
  void add_reference(int call)
  {
    std::vector<const T*> rows;
    std::vector<void*> row_gradients;
    // The reference takes one position stride for all rows, so rows are listed from contiguous copies.
    for (int n = 0; n <= call; ++n) {
      rows.push_back(contiguous_row(n));
      row_gradients.push_back(expected_.rows.data() + n * matrix_size());
    }
    if (options_.private_rows) {
      rows.push_back(private_rows_.data() + call * matrix_size());
      row_gradients.push_back(expected_.private_rows.data() + call * matrix_size());
    }
    mhar::route_problem<T> forward;
    forward.extent = options_.extent;
    forward.num_rows = static_cast<int>(rows.size());
    forward.rows = mhar::row_list<T>(rows.data(), width_);
    forward.site = sites_[static_cast<std::size_t>(call)];
    forward.stage = stage(call);
    forward.outputs.y = {expected_.y.data() + call * matrix_size(), width_};
    std::vector<accumulate> lse(static_cast<std::size_t>(positions_ * heads_));
    forward.outputs.lse = lse.data();
    mhar::reference::route(forward);
    std::copy(lse.begin(), lse.end(), expected_.lse.begin() + call * positions_ * heads_);

    mhar::route_gradient_problem<T> backward;
    backward.extent = forward.extent;
    backward.num_rows = forward.num_rows;
    backward.rows = forward.rows;
    backward.site = forward.site;
    backward.stage = forward.stage;
    backward.output_gradient = {upstream_.data() + call * matrix_size(), width_};
    backward.row_gradients.list = row_gradients.data();
    backward.row_gradients.type = mhar::element::float64;
    backward.row_gradients.position_stride = width_;
    backward.row_gradients.mode = mhar::update::accumulate;
    mhar::site_gradients& wanted = backward.gradients;
    wanted.query = expected_.query.data() + call * width_;
    wanted.norm_weight = expected_.norm_weight.data() + call * width_;
    if (options_.bias) { wanted.bias = expected_.bias.data() + call * most_sources(); }
    if (options_.null_source) { wanted.null_source = expected_.null_source.data() + call * width_; }
    if (options_.gate) { wanted.gate = expected_.gate.data() + call; }
    if (options_.norm == mhar::output_norm::rms) {
      wanted.output_norm_weight = expected_.norm.data() + call * width_;
    }
    mhar::reference::route_gradient(backward);
  }

  [[nodiscard]] const T* contiguous_row(int row)
  {
    std::vector<T>& copy = row_copies_[static_cast<std::size_t>(row)];
    copy.clear();
    for (std::int64_t p = 0; p < positions_; ++p) {
      const T* const from = row_view().at(row, p);
      copy.insert(copy.end(), from, from + width_);
    }
    return copy.data();
  }

  //! Within the arithmetic's and the storage's rounding of the array's size; entries nobody writes are zero in both.
  template <class Actual>
  void compare_arrays(const std::string& name, const guarded<Actual>& actual,
                      const std::vector<double>& expected, double sums)
  {
    constexpr double storage = sizeof(T) == 2 ? 2 * tolerance_of<T>().relative : 0;
    constexpr double arithmetic = sizeof(accumulate) == 8 ? 1e-11 : 2e-5;
    const double states = mhar::size_of(options_.states) == 2
                              ? (options_.states == mhar::element::float16 ? 2e-3 : 1.6e-2)
                              : 0;
    double size = 0;
    for (const double value : expected) { size = std::max(size, std::abs(value)); }
    const double allowed = (storage + arithmetic + states) * std::max(1.0, size) * sums;
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < actual.size(); ++i) {
      const auto got = mhar::widen<double>(actual[i]);
      const double wanted = expected[static_cast<std::size_t>(i)];
      const bool unwritten = wanted == 0 && all_poison(&actual[i], sizeof(Actual));
      if (!unwritten && !close(got, wanted, {0, allowed})) {
        if (wrong++ == 0) {
          MESSAGE(name, " [", i, "] is ", got, ", expected ", wanted, " within ", allowed);
        }
      }
    }
    CHECK_MESSAGE(wrong == 0, name, ": ", wrong, " of ", actual.size(), " differ");
  }

  sweep_options<T> options_;
  std::int64_t positions_;
  std::int64_t width_;
  int heads_;
  int calls_;
  cpu_context context_;
  int rows_seen_ = 0;
  int calls_without_dot_ = calls_;

  template <class Value>
  using buffer = guarded<Value>;
  buffer<T> rows_{calls_ * matrix_size()};
  buffer<T> private_rows_{calls_ * matrix_size()};
  buffer<T> partial_{calls_ * matrix_size()};
  buffer<T> upstream_{calls_ * matrix_size()};
  buffer<T> call_gradients_{calls_ * matrix_size()};
  buffer<T> mix_{calls_ * matrix_size()};
  buffer<T> combined_{calls_ * matrix_size()};
  buffer<T> y_{calls_ * matrix_size()};
  buffer<T> row_gradients_{calls_ * matrix_size()};
  buffer<T> private_gradients_{options_.private_rows ? calls_ * matrix_size() : 0};
  buffer<accumulate> lse_{calls_ * positions_ * heads_};
  buffer<accumulate> dot_{calls_ * positions_ * heads_};
  buffer<accumulate> inverse_rms_{calls_ * positions_};
  buffer<accumulate> private_inverse_rms_{calls_ * positions_};
  buffer<accumulate> state_mix_{calls_ *
                                matrix_size()};  // serves both element types and both directions
  buffer<accumulate> state_lse_{calls_ * positions_ * heads_};
  buffer<accumulate> state_head_sum_{calls_ * positions_};

  buffer<float> queries_{calls_ * width_};
  buffer<float> norm_weights_{calls_ * width_};
  buffer<float> nulls_{calls_ * width_};
  buffer<float> biases_{std::int64_t{calls_} * most_sources()};
  buffer<float> gates_{calls_};
  std::vector<mhar::site_parameters> sites_;
  std::vector<mhar::const_array> gate_arrays_;
  std::vector<int> num_sources_;

  mhar::folded_sites<accumulate> folded_;
  buffer<accumulate> folded_query_{calls_ * width_};
  buffer<accumulate> folded_bias_{calls_ * (calls_ + 1)};
  buffer<accumulate> folded_null_{calls_ * width_};
  buffer<accumulate> folded_null_logit_{std::int64_t{calls_} * heads_};
  buffer<accumulate> folded_gate_{calls_};
  buffer<accumulate> folded_logit_gate_{calls_};

  mhar::gradient_partials<accumulate> partials_;
  std::vector<accumulate> partial_query_;
  std::vector<accumulate> partial_bias_;
  std::vector<accumulate> partial_null_;
  std::vector<accumulate> partial_gate_;
  std::vector<accumulate> partial_norm_;

  buffer<accumulate> query_gradients_{calls_ * width_};
  buffer<accumulate> norm_weight_gradients_{calls_ * width_};
  buffer<accumulate> bias_gradients_{options_.bias ? calls_ * most_sources() : 0};
  buffer<accumulate> null_gradients_{options_.null_source ? calls_ * width_ : 0};
  buffer<accumulate> gate_gradients_{options_.gate ? calls_ : 0};
  buffer<accumulate> norm_gradients_{options_.norm == mhar::output_norm::rms ? calls_ * width_ : 0};

  std::vector<std::vector<T>> row_copies_ =
      std::vector<std::vector<T>>(static_cast<std::size_t>(calls_));
  struct
  {
    std::vector<double> y, lse, rows, private_rows, query, norm_weight, bias, null_source, gate,
        norm;
  } expected_ = {zeros(calls_ * matrix_size()),
                 zeros(calls_* positions_* heads_),
                 zeros(calls_* matrix_size()),
                 zeros(calls_* matrix_size()),
                 zeros(calls_* width_),
                 zeros(calls_* width_),
                 zeros(calls_* most_sources()),
                 zeros(calls_* width_),
                 zeros(calls_),
                 zeros(calls_* width_)};
  static std::vector<double> zeros(std::int64_t count)
  {
    return std::vector<double>(static_cast<std::size_t>(count), 0.0);
  }
};

}  // namespace mhar_test
