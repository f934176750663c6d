// SPDX-License-Identifier: Apache-2.0
//! Store and accumulate, empty problems, and what a refused call leaves alone, on the CPU.
#include "cpu/cpu_runs.hpp"

#include <mhar/cpu/merge.hpp>

using namespace mhar_test;

namespace {

call_options<float> full_options()
{
  call_options<float> options;
  options.extent = {8, 80, 8, 0};
  options.num_rows = 5;
  options.null_source = options.bias = options.gate = options.partial = true;
  options.norm = mhar::output_norm::rms;
  return options;
}

//! Every gradient's elements, in order.
std::vector<double> gradients_of(call_case<float>& data)
{
  std::vector<double> all;
  data.results().for_each_gradient([&](const char*, tensor& array) {
    array.for_each([&](auto... at) { all.push_back(array.get(at...)); });
  });
  return all;
}

void set_gradients(call_case<float>& data, double value)
{
  data.results().for_each_gradient([&](const char*, tensor& array) {
    array.for_each([&](auto... at) { array.set(at..., value); });
  });
}

std::vector<double> run_backward(call_case<float>& data, mhar::update mode)
{
  auto backward = data.backward(host_memory{});
  backward.problem.row_gradients.mode = mode;
  backward.problem.partial_gradient.mode = mode;
  mhar::site_gradients& wanted = backward.problem.gradients;
  for (mhar::array* gradient : {&wanted.query, &wanted.norm_weight, &wanted.bias,
                                &wanted.null_source, &wanted.gate, &wanted.output_norm_weight}) {
    gradient->mode = mode;
  }
  route_gradient_on_cpu(backward.problem);
  return gradients_of(data);
}

}  // namespace

TEST_CASE("cpu: store mode never reads its destination, accumulate mode adds")
{
  random_inputs random{231};
  call_case<float> data{full_options(), random};  // gradients begin as NaN
  const std::vector<double> stored = run_backward(data, mhar::update::store);
  CHECK_PASSES(data.check_backward());
  CHECK(run_backward(data, mhar::update::store) == stored);

  set_gradients(data, 0);
  CHECK(run_backward(data, mhar::update::accumulate) == stored);
  set_gradients(data, 3);
  const std::vector<double> added = run_backward(data, mhar::update::accumulate);
  const std::vector<double> twice = run_backward(data, mhar::update::accumulate);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const double size = 3 + std::abs(stored[i]);
    CHECK(std::abs(added[i] - (3 + stored[i])) <= 1e-6 * size);
    CHECK(std::abs(twice[i] - (3 + 2 * stored[i])) <= 2e-6 * size);
  }
}

TEST_CASE("cpu: a listed row without a gradient is left out, the others are as before")
{
  random_inputs random{232};
  call_options<float> options = full_options();
  options.row_gradients = row_layout::listed;
  call_case<float> data{options, random};
  run_backward(data, mhar::update::store);
  std::vector<double> complete;
  data.results().row_gradients.for_each(
      [&](auto... at) { complete.push_back(data.results().row_gradients.get(at...)); });
  data.results().row_gradients =
      tensor{mhar::element::float32, data.results().row_gradients.where()};

  auto backward = data.backward(host_memory{});
  backward.row_gradients[1] = nullptr;
  backward.row_gradients[4] = nullptr;
  route_gradient_on_cpu(backward.problem);
  std::size_t index = 0;
  data.results().row_gradients.for_each([&](std::int64_t row, std::int64_t p, std::int64_t k) {
    const double value = data.results().row_gradients.get(row, p, k);
    if (row == 1 || row == 4) { CHECK(std::isnan(value)); }
    else {
      CHECK(value == complete[index]);
    }
    ++index;
  });
}

TEST_CASE("cpu: gradients that nobody wants are not written, the others keep their bits")
{
  random_inputs random{233};
  call_case<float> data{full_options(), random};
  run_backward(data, mhar::update::store);
  const double query = data.results().query.get(0, 0, 7);
  const double partial = data.results().partial_gradient.get(0, 3, 7);
  auto backward = data.backward(host_memory{});
  backward.problem.row_gradients = {};
  backward.problem.gradients = {};
  backward.problem.gradients.query = {data.results().query.data(), mhar::element::float32};
  route_gradient_on_cpu(backward.problem);
  CHECK(data.results().query.get(0, 0, 7) == query);
  backward.problem.gradients = {};
  route_gradient_on_cpu(backward.problem);
  CHECK(data.results().partial_gradient.get(0, 3, 7) == partial);
}

TEST_CASE("cpu: four batches added up equal one")
{
  random_inputs random{234};
  call_options<float> options;
  options.extent = {32, 80, 8, 0};
  options.num_rows = 5;
  call_case<float> data{options, random};
  std::vector<float> query(80);
  auto whole_batch = data.backward(host_memory{});
  for (int batch = 0; batch < 4; ++batch) {
    mhar::route_gradient_problem<float> problem = whole_batch.problem;
    problem.extent.num_positions = 8;
    problem.rows.base += batch * 8 * problem.rows.position_stride;
    const auto skip = [&](auto& view) {
      view.data =
          static_cast<std::conditional_t<
              std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const float*, float*>>(
              view.data) +
          batch * 8 * view.position_stride;
    };
    skip(problem.output_gradient);
    problem.mix = {};
    problem.lse = nullptr;
    problem.inverse_rms = nullptr;
    problem.row_gradients = {};
    problem.partial_gradient = {};
    problem.gradients = {};
    problem.gradients.query = {query.data(), mhar::element::float32,
                               batch == 0 ? mhar::update::store : mhar::update::accumulate};
    route_gradient_on_cpu(problem);
  }
  run_backward(data, mhar::update::store);
  double largest_element = largest(data.results().query);
  for (std::int64_t k = 0; k < 80; ++k) {
    const double together = data.results().query.get(0, 0, k);
    CHECK(std::abs(static_cast<double>(query[static_cast<std::size_t>(k)]) - together) <=
          1e-5 * largest_element);
  }
}

TEST_CASE("cpu: no positions is success, parameter gradients are stored as zero or stay")
{
  for (const mhar::update mode : {mhar::update::store, mhar::update::accumulate}) {
    std::vector<float> query(7168, 1.0f);
    std::vector<float> gradient(7168, 5.0f);
    float gate = 1;
    float gate_gradient = 5;
    mhar::route_gradient_problem<mhar::bfloat16> backward;
    backward.extent = {0, 7168, 8, 0};
    backward.num_rows = 3;
    backward.site.query = query.data();
    backward.stage.gate = &gate;
    backward.gradients.query = {gradient.data(), mode};
    backward.gradients.gate = {&gate_gradient, mode};
    route_gradient_on_cpu(backward);
    const float expected = mode == mhar::update::store ? 0.0f : 5.0f;
    CHECK(std::all_of(gradient.begin(), gradient.end(), [&](float g) { return g == expected; }));
    CHECK(gate_gradient == expected);

    mhar::route_problem<mhar::bfloat16> forward;
    forward.extent = backward.extent;
    forward.num_rows = 3;
    forward.site = backward.site;
    CHECK(mhar::cpu::route(forward, {}).ok());
  }
}

TEST_CASE("cpu: a workspace that is missing or too small is refused and nothing is written")
{
  random_inputs random{235};
  call_case<float> data{full_options(), random};
  const auto forward = data.forward(host_memory{});
  const std::size_t needed = workspace_bytes(forward.problem, mhar::cpu::context{});
  cpu_context small{needed - 1};
  CHECK(mhar::cpu::route(forward.problem, small.get()).code == mhar::code::small_workspace);
  CHECK(mhar::cpu::route(forward.problem, {}).code == mhar::code::small_workspace);
  const auto backward = data.backward(host_memory{});
  cpu_context too_small{workspace_bytes(backward.problem, mhar::cpu::context{}) - 1};
  CHECK(mhar::cpu::route_gradient(backward.problem, too_small.get()).code ==
        mhar::code::small_workspace);
  CHECK(std::isnan(data.results().y.get(0, 0, 0)));
  CHECK(std::isnan(data.results().query.get(0, 0, 0)));
}
