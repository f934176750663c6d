// SPDX-License-Identifier: Apache-2.0
//! Every gradient of the reference against central differences, for every set of options.
#include "support/call_case.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using namespace mhar_test;

namespace {

//! <dy, y> + <e, o>: its gradients are what the backward answers.
double loss(call_case<double>& data)
{
  mhar::reference::route(data.forward(host_memory{}).problem);
  double sum = 0;
  data.results().y.for_each([&](auto... at) {
    sum += data.results().y.get(at...) * data.inputs().output_gradient.get(at...);
    if (data.inputs().combined_gradient) {
      sum += data.results().combined.get(at...) * data.inputs().combined_gradient.get(at...);
    }
  });
  return sum;
}

//! The largest distance between the gradient and the differences, relative to the largest element.
double distance(call_case<double>& data, tensor& input, tensor& gradient)
{
  double error = 0;
  double scale = 1;
  input.for_each([&](auto... at) {
    const double before = input.get(at...);
    const double step = 1e-5;
    input.set(at..., before + step);
    const double above = loss(data);
    input.set(at..., before - step);
    const double below = loss(data);
    input.set(at..., before);
    error = std::max(error, std::abs((above - below) / (2 * step) - gradient.get(at...)));
    scale = std::max(scale, std::abs(gradient.get(at...)));
  });
  return error / scale;
}

void check_all(const call_options<double>& options, random_inputs& random)
{
  CAPTURE(describe(options));
  call_case<double> data{options, random};
  call_inputs<double>& in = data.inputs();
  call_results<double>& gradients = data.expected();
  constexpr double allowed = 1e-7;
  CHECK(distance(data, in.rows, gradients.row_gradients) < allowed);
  CHECK(distance(data, in.query, gradients.query) < allowed);
  CHECK(distance(data, in.norm_weight, gradients.norm_weight) < allowed);
  CHECK(distance(data, in.bias, gradients.bias) < allowed);
  CHECK(distance(data, in.null_source, gradients.null_source) < allowed);
  CHECK(distance(data, in.partial, gradients.partial_gradient) < allowed);
  CHECK(distance(data, in.gate, gradients.gate) < allowed);
  CHECK(distance(data, in.output_norm_weight, gradients.output_norm_weight) < allowed);
}

call_options<double> in_double()
{
  call_options<double> options;
  options.parameters = mhar::element::float64;
  options.parameter_gradients = mhar::element::float64;
  return options;
}

}  // namespace

TEST_CASE("reference: gradients equal central differences for every set of options")
{
  random_inputs random{111};
  for (unsigned set = 0; set < 256; ++set) {
    const auto has = [set](unsigned bit) { return (set >> bit & 1u) != 0; };
    call_options<double> options = in_double();
    options.extent = {2, 6, has(7) ? 3 : 1, 0};
    options.num_rows = 3;
    options.null_source = has(0);
    options.norm_weight = has(1);
    options.bias = has(2);
    options.partial = has(3);
    options.gate = has(4);
    options.norm = has(5) ? mhar::output_norm::rms : mhar::output_norm::none;
    options.combined_upstream = has(6);
    options.scale = 0.8;
    check_all(options, random);
  }
}

TEST_CASE("reference: gradients equal central differences for any number of sources")
{
  random_inputs random{112};
  for (int num_rows = 0; num_rows < 9; ++num_rows) {
    for (const bool null_source : {false, true}) {
      if (num_rows == 0 && !null_source) { continue; }
      call_options<double> options = in_double();
      options.extent = {3, 8, 4, 0};
      options.num_rows = num_rows;
      options.null_source = null_source;
      options.partial = true;
      options.gate = true;
      options.bias = true;
      check_all(options, random);
    }
  }
}

TEST_CASE("reference: what is saved changes no gradient when it is not rounded")
{
  random_inputs random{113};
  for (int i = 0; i < 50; ++i) {
    call_options<double> options = random_options<double>(random);
    options.activations = options.outputs = options.states = options.row_gradient_type =
        options.parameter_gradients = mhar::element::float64;
    call_case<double> data{options, random};
    for (tensor call_inputs<double>::*saved :
         {&call_inputs<double>::lse, &call_inputs<double>::inverse_rms, &call_inputs<double>::mix,
          &call_inputs<double>::combined}) {
      data.inputs().*saved = tensor{};
      auto gradient = data.backward(host_memory{});
      data.reset_gradients();
      mhar::reference::route_gradient(gradient.problem);
      data.inputs().remember();
      CHECK_PASSES(data.check_backward());
    }
  }
}
