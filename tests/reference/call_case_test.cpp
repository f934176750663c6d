// SPDX-License-Identifier: Apache-2.0
//! The test calls themselves: a wrong element, a missing one, and a write beside the outputs are
//! all noticed.
#include "support/call_case.hpp"

#include <doctest/doctest.h>

#include <functional>

using namespace mhar_test;

namespace {

template <class T>
call_options<T> with_everything()
{
  call_options<T> options;
  options.null_source = options.bias = options.partial = options.gate = true;
  options.norm = mhar::output_norm::rms;
  options.gap = 3;
  options.offset = 1;
  return options;
}

//! Runs the reference in the place of a backend, then does `harm`.
template <class T>
comparison outcome(const call_options<T>& options,
                   const std::function<void(call_case<T>&)>& harm = {})
{
  random_inputs random{131};
  call_case<T> data{options, random};
  mhar::reference::route(data.forward(host_memory{}).problem);
  mhar::reference::route_gradient(data.backward(host_memory{}).problem);
  if (harm) { harm(data); }
  const comparison forward = data.check_forward();
  const comparison backward = data.check_backward();
  return {forward.ok && backward.ok, forward.text + backward.text};
}

//! Moves the largest element by this much, relative to it or to 1.
void spoil(tensor& array, double error)
{
  std::int64_t row = 0;
  std::int64_t position = 0;
  std::int64_t column = 0;
  array.for_each([&](std::int64_t r, std::int64_t p, std::int64_t c) {
    if (std::abs(array.get(r, p, c)) > std::abs(array.get(row, position, column))) {
      row = r;
      position = p;
      column = c;
    }
  });
  const double value = array.get(row, position, column);
  array.set(row, position, column, value + error * std::max(1.0, std::abs(value)));
}

}  // namespace

TEST_CASE_TEMPLATE("call_case: what is right passes", T, mhar::bfloat16, mhar::float16, float,
                   double)
{
  for (const auto mode : {mhar::update::store, mhar::update::accumulate}) {
    call_options<T> options = with_everything<T>();
    options.mode = mode;
    CHECK_PASSES(outcome(options));
  }
}

TEST_CASE("call_case: an error of 1e-3 in any fp32 result is noticed")
{
  std::vector<std::string> names;
  call_results<float> all{with_everything<float>(), precision::stored};
  const auto collect = [&](const char* name, tensor&) { names.emplace_back(name); };
  all.for_each_forward(collect);
  all.for_each_gradient(collect);
  for (std::size_t index = 0; index < names.size(); ++index) {
    CAPTURE(names[index]);
    const comparison result = outcome<float>(with_everything<float>(), [&](auto& data) {
      std::size_t i = 0;
      const auto choose = [&](const char*, tensor& array) {
        if (i++ == index) { spoil(array, 1e-3); }
      };
      data.results().for_each_forward(choose);
      data.results().for_each_gradient(choose);
    });
    CHECK_FALSE(result.ok);
    CHECK(result.text.find(names[index]) != std::string::npos);
  }
}

TEST_CASE("call_case: an error of a bf16 step too many is noticed")
{
  CHECK_FALSE(outcome<mhar::bfloat16>(with_everything<mhar::bfloat16>(), [](auto& data) {
                spoil(data.results().y, 0.05);
              }).ok);
}

TEST_CASE("call_case: an output that nobody wrote is noticed")
{
  random_inputs random{132};
  call_case<float> data{with_everything<float>(), random};
  CHECK_FALSE(data.check_forward().ok);
  CHECK_FALSE(data.check_backward().ok);
}

TEST_CASE("call_case: an output that is not wanted is null, and the others are still compared")
{
  random_inputs random{133};
  call_case<float> data{with_everything<float>(), random};
  data.results().lse = {};
  data.results().mix = {};
  data.results().query = {};
  const auto forward = data.forward(host_memory{});
  const auto backward = data.backward(host_memory{});
  CHECK(forward.problem.outputs.lse == nullptr);
  CHECK_FALSE(forward.problem.outputs.mix);
  CHECK_FALSE(backward.problem.gradients.query);
  mhar::reference::route(forward.problem);
  mhar::reference::route_gradient(backward.problem);
  CHECK_PASSES(data.check_forward());
  CHECK_PASSES(data.check_backward());
}

TEST_CASE("call_case: writes beside an output, between its positions, and to an input are noticed")
{
  const auto options = with_everything<float>();
  const auto element = [](tensor& array, std::int64_t index) -> float& {
    return static_cast<float*>(array.data())[index];
  };
  CHECK_FALSE(outcome<float>(options, [&](auto& data) { element(data.results().y, -1) = 0; }).ok);
  CHECK_FALSE(outcome<float>(options, [&](auto& data) { element(data.results().y, 24) = 0; }).ok);
  CHECK_FALSE(outcome<float>(options, [&](auto& data) {
                tensor& gradients = data.results().row_gradients;
                element(gradients, gradients.where().span()) = 0;
              }).ok);
  CHECK_FALSE(outcome<float>(options, [&](auto& data) { element(data.inputs().query, 0) = 0; }).ok);
}
