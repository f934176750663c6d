// SPDX-License-Identifier: Apache-2.0
//! Inputs that have broken other implementations, with values worked out by hand.
#include "support/call_case.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace mhar_test;

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

//! Calls and what they give, without guards: [N][P, d] rows, fp32 parameters, results in double.
template <class T>
struct small_call
{
  mhar::route_problem<T> problem;
  mhar::route_gradient_problem<T> gradient;
  std::vector<T> rows;
  std::vector<float> query;
  std::vector<double> y, mix, row_gradients, dq;
  std::vector<mhar::accumulate_t<T>> lse, weights;
  std::vector<T> dy;

  small_call(const mhar::shape& extent, int num_rows) : rows(count(extent, num_rows))
  {
    const auto elements = count(extent, 1);
    const auto heads = static_cast<std::size_t>(extent.num_positions * extent.num_heads);
    query.assign(static_cast<std::size_t>(extent.width), 0);
    for (auto* values : {&y, &mix}) { values->resize(elements); }
    row_gradients.resize(rows.size());
    dq.resize(query.size());
    lse.resize(heads);
    weights.resize(heads * static_cast<std::size_t>(num_rows));
    dy.assign(elements, mhar::round_to<T>(1.0));

    problem.extent = extent;
    problem.num_rows = num_rows;
    problem.rows = mhar::source_major(rows.data(), extent.num_positions, extent.width);
    problem.site.query = query.data();
    problem.outputs.y = {y.data(), extent.width};
    problem.outputs.mix = {mix.data(), extent.width};
    problem.outputs.lse = lse.data();
    problem.outputs.weights = weights.data();
  }

  static std::size_t count(const mhar::shape& extent, int num_rows)
  {
    return static_cast<std::size_t>(num_rows * extent.num_positions * extent.width);
  }
  void fill_row(int n, double value)
  {
    const auto size = static_cast<std::ptrdiff_t>(y.size());
    std::fill_n(rows.begin() + n * size, size, mhar::round_to<T>(value));
  }
  void forward() { mhar::reference::route(problem); }
  void backward()
  {
    gradient.extent = problem.extent;
    gradient.num_rows = problem.num_rows;
    gradient.rows = problem.rows;
    gradient.site = problem.site;
    gradient.stage = problem.stage;
    const std::int64_t width = problem.extent.width;
    gradient.output_gradient = {dy.data(), width};
    gradient.row_gradients = {row_gradients.data(),
                              mhar::element::float64,
                              problem.extent.num_positions * width,
                              width,
                              nullptr,
                              mhar::update::store};
    gradient.gradients.query = dq.data();
    mhar::reference::route_gradient(gradient);
  }
};

bool all_finite(const std::vector<double>& values)
{
  for (const double value : values) {
    if (!std::isfinite(value)) { return false; }
  }
  return true;
}

}  // namespace

TEST_CASE("reference: logits that underflow or are -inf lose no head, wherever the finite one is")
{
  for (const int num_rows : {5, 9, 33, 65}) {
    for (const int finite : {0, 2, num_rows - 1}) {
      for (const float huge : {-3e38f, -1e30f}) {
        CAPTURE(num_rows);
        CAPTURE(finite);
        CAPTURE(huge);
        small_call<float> call{{3, 16, 2, 0}, num_rows};
        for (int n = 0; n < num_rows; ++n) { call.fill_row(n, 1); }
        for (int p = 0; p < 3; ++p) {
          for (int j = 0; j < 16; ++j) {
            call.rows[static_cast<std::size_t>((finite * 3 + p) * 16 + j)] = j >= 8       ? 2
                                                                             : j % 4 == 0 ? 0
                                                                                          : 7;
          }
        }
        call.query[0] = call.query[4] = huge;
        call.forward();
        call.backward();
        for (int p = 0; p < 3; ++p) {
          for (int j = 0; j < 16; ++j) {
            const double y = call.y[static_cast<std::size_t>(p * 16 + j)];
            if (j < 8) { CHECK(y == (j % 4 == 0 ? 0 : 7)); }
            else {
              CHECK(y == doctest::Approx(1 + 1.0 / num_rows).epsilon(1e-12));
            }
          }
        }
        CHECK(all_finite(call.row_gradients));
        CHECK(all_finite(call.dq));
        for (int n = 0; n < num_rows; ++n) {
          if (n == finite) { continue; }
          for (int j = 0; j < 8; ++j) {
            CHECK(call.row_gradients[static_cast<std::size_t>(n * 3 * 16 + j)] == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("reference: logits 1e4 apart give weights of exactly 1 and 0")
{
  small_call<float> call{{1, 2, 1, 0}, 2};
  call.query = {1e4f, -1e4f};
  call.rows = {1, 0, 0, 1};
  call.forward();
  call.backward();
  CHECK(call.weights == std::vector<float>{1, 0});
  CHECK(call.y == std::vector<double>{1, 0});
  CHECK(all_finite(call.dq));
}

TEST_CASE("reference: a head without a finite logit gives mix 0, lse -inf, and no gradient")
{
  small_call<float> call{{2, 4, 2, 0}, 3};
  for (int n = 0; n < 3; ++n) { call.fill_row(n, n + 1); }
  const std::vector<float> bias(3, -std::numeric_limits<float>::infinity());
  call.problem.site.bias = bias.data();
  std::vector<float> partial(8, 5);
  const float gate = 0.5f;
  call.problem.stage.partial = {partial.data(), 4};
  call.problem.stage.gate = &gate;
  call.forward();
  for (const double y : call.y) { CHECK(y == 5); }
  for (const double mix : call.mix) { CHECK(mix == 0); }
  for (const float lse : call.lse) { CHECK(static_cast<double>(lse) == minus_infinity); }
  for (const float weight : call.weights) { CHECK(weight == 0); }

  std::vector<double> bias_gradient(3, 7);
  std::vector<double> gate_gradient(1, 7);
  std::vector<double> partial_gradient(8);
  call.gradient.gradients.bias = bias_gradient.data();
  call.gradient.gradients.gate = gate_gradient.data();
  call.gradient.partial_gradient = {partial_gradient.data(), 4};
  for (const float* saved : std::vector<const float*>{nullptr, call.lse.data()}) {
    call.gradient.lse = saved;
    call.backward();
    for (const double ds : call.row_gradients) { CHECK(ds == 0); }
    for (const double dq : call.dq) { CHECK(dq == 0); }
    for (const double db : bias_gradient) { CHECK(db == 0); }
    CHECK(gate_gradient[0] == 0);
    for (const double dx : partial_gradient) { CHECK(dx == 1); }
  }
}

TEST_CASE("reference: one position's overflow stays with that position and head")
{
  small_call<float> good{{3, 6, 2, 0}, 4};
  random_inputs random{121};
  random.fill(good.rows.data(), static_cast<std::int64_t>(good.rows.size()));
  random.fill(good.query.data(), 6);
  good.forward();
  small_call<float> bad = good;
  bad.problem.rows = mhar::source_major(bad.rows.data(), 3, 6);
  bad.problem.outputs.y = {bad.y.data(), 6};
  bad.problem.outputs.mix = {bad.mix.data(), 6};
  bad.problem.outputs.lse = bad.lse.data();
  bad.problem.outputs.weights = bad.weights.data();
  for (int n = 0; n < 4; ++n) { bad.rows[static_cast<std::size_t>((n * 3 + 1) * 6)] = NAN; }
  bad.forward();
  for (const std::size_t p : {std::size_t{0}, std::size_t{2}}) {
    for (std::size_t j = 0; j < 6; ++j) { CHECK(bad.y[p * 6 + j] == good.y[p * 6 + j]); }
  }
}

TEST_CASE("reference: a NaN logit among -inf is NaN, wherever it stands")
{
  for (int place = 0; place < 3; ++place) {
    double bias[] = {minus_infinity, minus_infinity, minus_infinity};
    bias[place] = NAN;
    small_call<float> call{{1, 4, 1, 0}, 3};
    call.problem.site.bias = bias;
    call.forward();
    CHECK(std::isnan(call.lse[0]));
    for (const double y : call.y) { CHECK(std::isnan(y)); }
  }
}

TEST_CASE_TEMPLATE("reference: squares that overflow the storage type do no harm", T, mhar::float16,
                   mhar::bfloat16, float, double)
{
  const auto is_half = mhar::element_of<T>::value == mhar::element::float16;
  std::vector<double> sizes = {300, 65504};
  if (!is_half) { sizes.insert(sizes.end(), {1e15, 1e19, 3e38}); }
  if (mhar::element_of<T>::value == mhar::element::float64) {
    sizes.insert(sizes.end(), {1e155, 1e308});
  }
  for (const std::int64_t width : {512, 7168}) {
    for (const double size : sizes) {
      CAPTURE(width);
      CAPTURE(size);
      small_call<T> call{{1, width, 1, 0}, 1};
      call.problem.stage.norm = mhar::output_norm::rms;
      call.fill_row(0, size);
      call.forward();
      for (const double y : call.y) { CHECK(y == doctest::Approx(1).epsilon(1e-9)); }
    }
  }
}

TEST_CASE("reference: a mean of large rows does not overflow, and its logits are right")
{
  small_call<mhar::float16> call{{1, 64, 1, 0}, 64};
  for (int n = 0; n < 64; ++n) { call.fill_row(n, 60000); }
  call.forward();
  for (const double y : call.y) { CHECK(y == doctest::Approx(60000).epsilon(1e-12)); }

  for (int n = 0; n < 64; ++n) { call.fill_row(n, 300); }
  call.query.assign(64, 1.0f / 64);
  call.forward();
  CHECK(static_cast<double>(call.lse[0]) == doctest::Approx(1 + std::log(64.0)).epsilon(1e-6));
}

TEST_CASE("reference: parameter gradients are not added up in bf16")
{
  constexpr std::int64_t positions = 4096;
  small_call<mhar::bfloat16> call{{positions, 64, 1, 0}, 1};
  call.fill_row(0, 1);
  std::vector<float> weight(64, 1);
  std::vector<float> weight_gradient(64);
  call.problem.stage.norm = mhar::output_norm::rms;
  call.problem.stage.norm_weight = weight.data();
  call.gradient.gradients.output_norm_weight = weight_gradient.data();
  call.backward();
  for (const float dw : weight_gradient) { CHECK(dw == doctest::Approx(4095.998).epsilon(1e-6)); }

  small_call<mhar::bfloat16> pair{{positions, 64, 1, 0}, 2};
  for (std::size_t i = 0; i < pair.rows.size(); ++i) {
    const bool odd = i >= pair.rows.size() / 2 && i % 2 == 1;
    pair.rows[i] = mhar::round_to<mhar::bfloat16>(odd ? -1.0f : 1.0f);
  }
  pair.backward();
  for (std::size_t j = 0; j < 64; ++j) {
    CHECK(pair.dq[j] == doctest::Approx(j % 2 == 0 ? 0 : 131072).epsilon(1e-3));
  }
}

TEST_CASE("reference: the upstream on o is added after the output norm's backward")
{
  const double row[] = {4, 6}, null_source[] = {0, 0}, query[] = {0, 0}, partial[] = {1, 1};
  const double weight[] = {1, 1}, gate[] = {1}, dy[] = {1, 0}, upstream[] = {10, 20};
  double y[2], dx[2], ds[2], dq[2], dgate[1], dweight[2];

  mhar::route_problem<double> forward;
  forward.extent = {1, 2, 1, 0};
  forward.num_rows = 1;
  forward.rows = mhar::source_major(row, 1, 2);
  forward.site.query = query;
  forward.site.null_source = null_source;
  forward.site.eps = 1e-12;
  forward.stage = {{partial, 2}, gate, mhar::output_norm::rms, weight, 1e-12};
  forward.outputs.y = {y, 2};
  mhar::reference::route(forward);
  CHECK(y[0] == doctest::Approx(.8485281).epsilon(1e-7));
  CHECK(y[1] == doctest::Approx(1.1313708).epsilon(1e-7));

  mhar::route_gradient_problem<double> backward;
  backward.extent = forward.extent;
  backward.num_rows = 1;
  backward.rows = forward.rows;
  backward.site = forward.site;
  backward.stage = forward.stage;
  backward.output_gradient = {dy, 2};
  backward.combined_gradient = {upstream, 2};
  backward.partial_gradient = {dx, 2};
  backward.row_gradients.base = ds;
  backward.row_gradients.type = mhar::element::float64;
  backward.row_gradients.position_stride = 2;
  backward.gradients.query = dq;
  backward.gradients.gate = dgate;
  backward.gradients.output_norm_weight = dweight;
  mhar::reference::route_gradient(backward);
  CHECK(dx[0] == doctest::Approx(10.181019).epsilon(1e-7));
  CHECK(dx[1] == doctest::Approx(19.864235).epsilon(1e-7));
  CHECK(ds[0] == doctest::Approx(5.0905097).epsilon(1e-7));
  CHECK(ds[1] == doctest::Approx(9.9321178).epsilon(1e-7));
  CHECK(dq[0] == doctest::Approx(31.360831).epsilon(1e-7));
  CHECK(dq[1] == doctest::Approx(47.041247).epsilon(1e-7));
  CHECK(dgate[0] == doctest::Approx(79.954745).epsilon(1e-7));
  CHECK(dweight[0] == doctest::Approx(.8485281).epsilon(1e-7));
  CHECK(dweight[1] == 0);

  backward.combined_gradient = {};
  mhar::reference::route_gradient(backward);
  CHECK(dx[0] == doctest::Approx(0.181019).epsilon(1e-5));
  CHECK(dx[1] == doctest::Approx(-0.135765).epsilon(1e-5));

  const double none[] = {0, 0};
  backward.output_gradient = {none, 2};
  backward.combined_gradient = {upstream, 2};
  mhar::reference::route_gradient(backward);
  CHECK(dx[0] == 10);
  CHECK(dx[1] == 20);
}

TEST_CASE("reference: one source has weight 1 and leaves the query without gradient")
{
  random_inputs random{122};
  for (const bool null_source : {false, true}) {
    call_options<float> options;
    options.num_rows = null_source ? 0 : 1;
    options.null_source = null_source;
    options.bias = true;
    options.parameter_gradients = mhar::element::float64;
    call_case<float> data{options, random};
    call_results<float>& expected = data.expected();
    expected.weights.for_each([&](auto... at) { CHECK(expected.weights.get(at...) == 1); });
    for (tensor* gradient : {&expected.query, &expected.norm_weight, &expected.bias}) {
      gradient->for_each([&](auto... at) { CHECK(gradient->get(at...) == 0); });
    }
    expected.row_gradients.for_each([&](auto... at) {
      CHECK(expected.row_gradients.get(at...) == data.inputs().output_gradient.get(at...));
    });
  }
}

TEST_CASE("reference: a closed gate gives the partial itself and keeps its own gradient")
{
  random_inputs random{123};
  call_options<mhar::bfloat16> options;
  options.null_source = true;
  options.partial = true;
  options.gate = true;
  call_case<mhar::bfloat16> data{options, random};
  data.inputs().gate.set(0, 0, 0, 0);
  data.inputs().partial.set(0, 0, 0, -0.0);
  data.inputs().rows.set(0, 0, 0, std::numeric_limits<double>::infinity());
  mhar::reference::route(data.forward(host_memory{}).problem);
  const auto* const y = static_cast<const mhar::bfloat16*>(data.results().y.data());
  const auto* const partial = static_cast<const mhar::bfloat16*>(data.inputs().partial.data());
  for (std::int64_t i = 0; i < 5 * 24; ++i) { CHECK(y[i].bits == partial[i].bits); }

  data.inputs().rows.set(0, 0, 0, 1);
  mhar::reference::route_gradient(data.backward(host_memory{}).problem);
  call_results<mhar::bfloat16>& results = data.results();
  CHECK(results.gate.get(0, 0, 0) != 0);
  for (tensor* gradient :
       {&results.query, &results.norm_weight, &results.null_source, &results.row_gradients}) {
    gradient->for_each([&](auto... at) { CHECK(gradient->get(at...) == 0); });
  }
}

TEST_CASE("reference: a query of zeros averages, and a row of zeros is legal")
{
  small_call<float> call{{1, 4, 2, 0}, 3};
  call.fill_row(1, 3);
  call.fill_row(2, 6);
  call.forward();
  for (const double y : call.y) { CHECK(y == doctest::Approx(3).epsilon(1e-12)); }
  std::vector<float> inverse_rms(3);
  call.problem.outputs.inverse_rms = inverse_rms.data();
  call.query.assign(4, 1);
  call.forward();
  call.backward();
  CHECK(inverse_rms[0] == doctest::Approx(1000).epsilon(1e-6));
  CHECK(all_finite(call.row_gradients));
}

TEST_CASE("reference: no positions is a success, and stores parameter gradients of zero")
{
  small_call<float> call{{0, 8, 2, 0}, 3};
  call.dq.assign(8, NAN);
  call.forward();
  call.backward();
  for (const double dq : call.dq) { CHECK(dq == 0); }
  call.gradient.gradients.query.mode = mhar::update::accumulate;
  call.dq.assign(8, 5);
  mhar::reference::route_gradient(call.gradient);
  for (const double dq : call.dq) { CHECK(dq == 5); }
}

TEST_CASE("reference: throws what validation answers")
{
  small_call<float> call{{1, 8, 3, 0}, 1};
  CHECK_THROWS_AS(call.forward(), mhar::invalid_argument);
  CHECK_THROWS_AS(call.backward(), mhar::invalid_argument);
}
