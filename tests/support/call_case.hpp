// SPDX-License-Identifier: Apache-2.0
//! One random routing call with any option set: its arrays, what a backend must make of them, and
//! the comparison. A test asks for a problem in its memory, gives it to a backend, and compares:
//!
//!     call_case<float> data{options, random};
//!     auto forward = data.forward(host_memory{});
//!     mhar::check(mhar::cpu::route(forward.problem, context));
//!     CHECK_PASSES(data.check_forward());
//!
//! A CUDA test passes a device_memory instead and calls its download() before it compares.
#pragma once

#include "support/call_arrays.hpp"
#include "support/call_scales.hpp"
#include "support/tolerance.hpp"

#include <mhar/reference/route.hpp>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

//! Fails the case with the comparison's text.
#define CHECK_PASSES(...)                                 \
  do {                                                    \
    const ::mhar_test::comparison outcome_ = __VA_ARGS__; \
    CHECK_MESSAGE(outcome_.ok, outcome_.text);            \
  } while (false)

namespace mhar_test {

//! Memory in which a CPU backend finds a call's arrays: their own.
struct host_memory
{
  void* operator()(tensor& array) const { return array.data(); }
};

//! A problem with the lists of rows that it points to.
template <class Problem, class Element>
struct bound
{
  Problem problem;
  std::vector<const Element*> rows;
  std::vector<void*> row_gradients;
};

template <class T>
class call_case
{
public:
  call_case(const call_options<T>& options, random_inputs& random)
      : options_{options},
        inputs_{options, random},
        results_{options, precision::stored},
        expected_{options, precision::exact}
  {
    prefill(random);
    expect();
  }

  //! Works out what is expected, and what an earlier forward would have saved; to be called again
  //! after a change of the inputs.
  void expect()
  {
    mhar::reference::route(bind_forward(expected_, host_memory{}).problem);
    constexpr mhar::element statistics = mhar::element_of<mhar::accumulate_t<T>>::value;
    const bool has_norm = options_.norm == mhar::output_norm::rms;
    if (options_.given_lse) { save(inputs_.lse, statistics, expected_.lse); }
    if (options_.given_inverse_rms) {
      save(inputs_.inverse_rms, statistics, expected_.inverse_rms);
    }
    if (options_.given_mix) { save(inputs_.mix, options_.states, expected_.mix); }
    if (options_.given_combined && has_norm) {
      save(inputs_.combined, options_.states, expected_.combined);
    }
    fill_gradients(expected_);
    mhar::reference::route_gradient(bind_backward(expected_, host_memory{}).problem);
    inputs_.remember();
  }

  [[nodiscard]] const call_options<T>& options() const { return options_; }
  [[nodiscard]] call_inputs<T>& inputs() { return inputs_; }
  //! What the backend writes. Make an array absent before binding when it is not wanted.
  [[nodiscard]] call_results<T>& results() { return results_; }
  //! What it should write, in double.
  [[nodiscard]] call_results<T>& expected() { return expected_; }

  //! Allows this many times the usual difference: for inputs that were changed to ones of another size than is drawn.
  void loosen(double times) { looseness_ = times; }

  //! Sets the gradients back to what they hold before a backward, for one more run.
  void reset_gradients() { fill_gradients(results_); }

  //! The problems, with every array where `memory` says it is.
  template <class Memory>
  [[nodiscard]] bound<mhar::route_problem<T>, T> forward(Memory&& memory)
  {
    return bind_forward(results_, memory);
  }
  //! The call with row `row` updated by `delta` first; `sum` null for the row's own place.
  template <class Memory>
  [[nodiscard]] bound<mhar::update_problem<T>, T> update(int row, tensor& delta, tensor* sum,
                                                         tensor& copy, Memory&& memory)
  {
    auto call = bind_forward(results_, memory);
    bound<mhar::update_problem<T>, T> b{{}, std::move(call.rows), {}};
    b.problem.call = call.problem;
    b.problem.row = row;
    b.problem.delta = as_matrix(delta, memory);
    b.problem.copy = as_matrix(copy, memory);
    const mhar::const_rows<T>& rows = call.problem.rows;
    b.problem.sum = sum != nullptr
                        ? as_matrix(*sum, memory)
                        : mhar::matrix{const_cast<T*>(rows.row(row)), rows.position_stride};
    return b;
  }
  template <class Memory>
  [[nodiscard]] bound<mhar::route_gradient_problem<T>, T> backward(Memory&& memory)
  {
    return bind_backward(results_, memory);
  }

  //! Every wanted output is right, and nothing else was written.
  [[nodiscard]] comparison check_forward()
  {
    comparison all{true, describe(options_)};
    const combined_rounding rounding{options_, inputs_, expected_};
    compare_each(all, "y", results_.y, expected_.y, rounding.output);
    compare_each(all, "combined", results_.combined, expected_.combined, rounding.terms);
    compare_each(all, "mix", results_.mix, expected_.mix, 1);
    compare_each(all, "lse", results_.lse, expected_.lse, 1);
    // Relative alone: the inverse rms of a large row is small.
    tolerance relative = tolerance_of(results_.inverse_rms.type());
    relative.absolute = 0;
    compare_within(all, "inverse_rms", results_.inverse_rms, expected_.inverse_rms, relative);
    compare_each(all, "weights", results_.weights, expected_.weights, 1);
    check_surroundings(all);
    return all;
  }

  [[nodiscard]] comparison check_backward()
  {
    const gradient_scales scale{options_, inputs_, expected_};
    const double norm_weight = options_.norm_weight ? largest(inputs_.norm_weight) : 1;
    comparison all{true, describe(options_)};
    compare_each(all, "row_gradients", results_.row_gradients, expected_.row_gradients, scale.row);
    compare_each(all, "partial_gradient", results_.partial_gradient, expected_.partial_gradient,
                 scale.partial);
    compare_each(all, "query", results_.query, expected_.query, scale.folded * norm_weight);
    compare_each(all, "norm_weight", results_.norm_weight, expected_.norm_weight,
                 scale.folded * largest(inputs_.query));
    compare_each(all, "bias", results_.bias, expected_.bias, scale.bias);
    compare_each(all, "null_source", results_.null_source, expected_.null_source,
                 scale.null_source);
    compare_each(all, "gate", results_.gate, expected_.gate, scale.gate);
    compare_each(all, "output_norm_weight", results_.output_norm_weight,
                 expected_.output_norm_weight, scale.output_norm_weight);
    check_surroundings(all);
    return all;
  }

private:
  void save(tensor& saved, mhar::element type, tensor& exact)
  {
    saved = tensor{type, exact.where(), options_.offset};
    saved.for_each([&](auto... at) { saved.set(at..., exact.get(at...)); });
  }

  //! Gives every gradient a value to add to, in accumulate mode.
  void prefill(random_inputs& random)
  {
    if (options_.mode == mhar::update::store) { return; }
    results_.for_each_gradient([&](const char*, tensor& array) {
      std::vector<double> values;
      array.for_each([&](auto... at) {
        array.set(at..., random.normal());
        values.push_back(array.get(at...));
      });
      before_.push_back(std::move(values));
    });
  }
  void fill_gradients(call_results<T>& gradients)
  {
    if (options_.mode == mhar::update::store) { return; }
    std::size_t array_index = 0;
    gradients.for_each_gradient([&](const char*, tensor& array) {
      const std::vector<double>& values = before_[array_index++];
      std::size_t index = 0;
      array.for_each([&](auto... at) { array.set(at..., values[index++]); });
    });
  }

  void compare_each(comparison& all, const char* name, tensor& actual, tensor& expected,
                    double sum_scale)
  {
    compare_within(all, name, actual, expected,
                   allowed_for(actual.type(), largest(expected), sum_scale));
  }

  //! The table's entry for what is stored, and besides what arithmetic loses in an array with
  //! elements of size `scale` that are sums of products of norm `sum_scale`.
  [[nodiscard]] tolerance allowed_for(mhar::element stored, double scale, double sum_scale) const
  {
    constexpr mhar::element arithmetic = mhar::element_of<mhar::accumulate_t<T>>::value;
    constexpr mhar::element key = mhar::element_of<T>::value;
    const tolerance in_sums = tolerance_of(arithmetic);
    tolerance allowed = tolerance_of(std::min(stored, arithmetic));
    allowed.absolute += in_sums.absolute * std::max(scale, sum_scale);
    if (options_.rounding != mhar::key_rounding::none) {
      // The last bit of the arithmetic decides what a key rounds to: nothing is more exact than a
      // key.
      const tolerance in_keys = tolerance_of(key);
      allowed.relative = std::max(allowed.relative, in_keys.relative);
      const double positions = static_cast<double>(options_.extent.num_positions);
      allowed.absolute +=
          in_keys.absolute * std::max({1.0, scale, sum_scale / std::sqrt(positions)});
    }
    allowed.relative *= looseness_;
    allowed.absolute *= looseness_;
    return allowed;
  }

  static void compare_within(comparison& all, const char* name, tensor& actual, tensor& expected,
                             tolerance allowed)
  {
    constexpr int listed = 4;
    std::int64_t wrong = 0;
    std::ostringstream text;
    text.precision(9);
    actual.for_each([&](std::int64_t row, std::int64_t position, std::int64_t column) {
      const double got = actual.get(row, position, column);
      const double wanted = expected.get(row, position, column);
      if (close(got, wanted, allowed)) { return; }
      if (wrong < listed) {
        text << '[' << row << ", " << position << ", " << column << "] is " << got << ", expected "
             << wanted << "; ";
      }
      ++wrong;
    });
    if (wrong > 0) { fail(all, name, text.str() + std::to_string(wrong) + " differ"); }
  }

  void check_surroundings(comparison& all)
  {
    const auto intact = [&](const char* name, tensor& array) {
      if (!array.surroundings_intact()) { fail(all, name, "was written outside its elements"); }
    };
    results_.for_each_forward(intact);
    results_.for_each_gradient(intact);
    if (!inputs_.unchanged()) { fail(all, "inputs", "were written"); }
  }

  static void fail(comparison& all, const char* name, const std::string& why)
  {
    all.ok = false;
    all.text += "\n  " + std::string{name} + ": " + why;
  }

  // The lists are as long as the call has rows; a problem takes them only when its layout is
  // listed.
  template <class Memory>
  [[nodiscard]] bound<mhar::route_problem<T>, T> bind_forward(call_results<T>& out, Memory&& at)
  {
    bound<mhar::route_problem<T>, T> b;
    bind_call(b, at);
    b.problem.outputs.y = as_matrix(out.y, at);
    b.problem.outputs.combined = as_matrix(out.combined, at);
    b.problem.outputs.mix = as_matrix(out.mix, at);
    b.problem.outputs.lse = as_statistics(out.lse, at);
    b.problem.outputs.inverse_rms = as_statistics(out.inverse_rms, at);
    b.problem.outputs.weights = as_statistics(out.weights, at);
    return b;
  }

  template <class Memory>
  [[nodiscard]] bound<mhar::route_gradient_problem<T>, T> bind_backward(call_results<T>& out,
                                                                        Memory&& at)
  {
    bound<mhar::route_gradient_problem<T>, T> b;
    bind_call(b, at);
    b.problem.output_gradient = as_matrix(inputs_.output_gradient, at);
    b.problem.combined_gradient = as_matrix(inputs_.combined_gradient, at);
    b.problem.lse = as_statistics(inputs_.lse, at);
    b.problem.inverse_rms = as_statistics(inputs_.inverse_rms, at);
    b.problem.mix = as_matrix(inputs_.mix, at);
    b.problem.combined = as_matrix(inputs_.combined, at);

    const placement& where = out.row_gradients.where();
    auto* const first = static_cast<char*>(at(out.row_gradients));
    if (options_.row_gradients == row_layout::listed && first != nullptr) {
      for (const std::int64_t start : where.row_start) {
        b.row_gradients.push_back(first + start * mhar::size_of(out.row_gradients.type()));
      }
      b.problem.row_gradients.list = b.row_gradients.data();
    }
    else {
      b.problem.row_gradients.base = first;
    }
    b.problem.row_gradients.type = out.row_gradients.type();
    b.problem.row_gradients.row_stride = row_stride(where);
    b.problem.row_gradients.position_stride = where.position_stride;
    b.problem.row_gradients.mode = options_.mode;

    b.problem.partial_gradient = as_matrix(out.partial_gradient, at);
    b.problem.partial_gradient.mode = options_.mode;
    b.problem.gradients.query = as_gradient(out.query, at);
    b.problem.gradients.norm_weight = as_gradient(out.norm_weight, at);
    b.problem.gradients.bias = as_gradient(out.bias, at);
    b.problem.gradients.null_source = as_gradient(out.null_source, at);
    b.problem.gradients.gate = as_gradient(out.gate, at);
    b.problem.gradients.output_norm_weight = as_gradient(out.output_norm_weight, at);
    return b;
  }

  //! What forward and backward have in common.
  template <class Problem, class Memory>
  void bind_call(bound<Problem, T>& b, Memory&& at)
  {
    b.problem.extent = options_.extent;
    b.problem.num_rows = options_.num_rows;

    const placement& where = inputs_.rows.where();
    const auto* const first = static_cast<const T*>(at(inputs_.rows));
    if (options_.rows == row_layout::listed && first != nullptr) {
      for (const std::int64_t start : where.row_start) { b.rows.push_back(first + start); }
      b.problem.rows.list = b.rows.data();
    }
    else {
      b.problem.rows.base = first;
    }
    b.problem.rows.row_stride = row_stride(where);
    b.problem.rows.position_stride = where.position_stride;

    b.problem.site.query = as_parameter(inputs_.query, at);
    b.problem.site.norm_weight = as_parameter(inputs_.norm_weight, at);
    b.problem.site.bias = as_parameter(inputs_.bias, at);
    b.problem.site.null_source = as_parameter(inputs_.null_source, at);
    b.problem.site.scale = options_.scale;
    b.problem.site.eps = options_.eps;
    b.problem.site.rounding = options_.rounding;

    b.problem.stage.partial = as_matrix(inputs_.partial, at);
    b.problem.stage.gate = as_parameter(inputs_.gate, at);
    b.problem.stage.norm = options_.norm;
    b.problem.stage.norm_weight = as_parameter(inputs_.output_norm_weight, at);
    b.problem.stage.norm_eps = 10 * options_.eps;
  }

  static std::int64_t row_stride(const placement& where)
  {
    // A listed layout's order makes this negative, and it is not used then.
    return where.num_rows() < 2
               ? 0
               : std::max<std::int64_t>(0, where.row_start[1] - where.row_start[0]);
  }
  template <class Memory>
  static mhar::const_array as_parameter(tensor& array, Memory&& at)
  {
    return {at(array), array.type()};
  }
  template <class Memory>
  static mhar::matrix as_matrix(tensor& array, Memory&& at)
  {
    return {at(array), array.type(), array.where().position_stride};
  }
  template <class Memory>
  static mhar::accumulate_t<T>* as_statistics(tensor& array, Memory&& at)
  {
    return static_cast<mhar::accumulate_t<T>*>(at(array));
  }
  template <class Memory>
  [[nodiscard]] mhar::array as_gradient(tensor& array, Memory&& at) const
  {
    return {at(array), array.type(), options_.mode};
  }

  call_options<T> options_;
  call_inputs<T> inputs_;
  call_results<T> results_;
  call_results<T> expected_;
  std::vector<std::vector<double>> before_;
  double looseness_ = 1;
};

}  // namespace mhar_test
