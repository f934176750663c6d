// SPDX-License-Identifier: Apache-2.0
//! A whole pass by the reference: outputs against single calls, gradients against central
//! differences.
#include "support/random.hpp"

#include <mhar/reference/chain.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace mhar_test;
using mhar::reference::chain_problem;
using mhar::reference::table;

namespace {

//! S calls over S rows, call c reading rows 0..c; every third has a private row, all have a null
//! source, a gate and a partial, and two adjacent calls are the queries of one site.
struct pass
{
  static constexpr int num_calls = 6;
  static constexpr std::int64_t positions = 2;
  static constexpr std::int64_t width = 6;
  static constexpr std::int64_t elements = positions * width;

  std::vector<double> rows, privates, partials, dy, query, norm_weight, null_source, gate;
  chain_problem<double> problem;

  explicit pass(random_inputs& random)
  {
    rows = random.vector<double>(num_calls * elements);
    privates = random.vector<double>(num_calls * elements);
    partials = random.vector<double>(num_calls * elements);
    dy = random.vector<double>(num_calls * elements);
    query = random.vector<double>(num_calls * width);
    norm_weight = random.vector<double>(num_calls / 2 * width);
    null_source = random.vector<double>(num_calls / 2 * width);
    gate = random.vector<double>(num_calls / 2);

    problem.extent = {positions, width, 3, 0};
    problem.num_rows = num_calls;
    problem.rows = mhar::source_major(rows.data(), positions, width);
    problem.queries_per_site = 2;
    for (int c = 0; c < num_calls; ++c) {
      mhar::reference::chain_call<double> call;
      call.num_rows = c;
      if (c % 3 == 0) { call.private_row = {privates.data() + c * elements, width}; }
      call.site.query = query.data() + c * width;
      call.site.norm_weight = norm_weight.data() + c / 2 * width;
      call.site.null_source = null_source.data() + c / 2 * width;
      call.stage.partial = {partials.data() + c * elements, width};
      call.stage.gate = gate.data() + c / 2;
      call.output_gradient = {dy.data() + c * elements, width};
      problem.calls.push_back(call);
    }
  }

  [[nodiscard]] double loss() const
  {
    double sum = 0;
    const auto outputs = mhar::reference::route_chain(problem);
    for (int c = 0; c < num_calls; ++c) {
      for (std::int64_t i = 0; i < elements; ++i) {
        sum += outputs[static_cast<std::size_t>(c)].y.data()[i] *
               dy[static_cast<std::size_t>(c * elements + i)];
      }
    }
    return sum;
  }

  //! Central differences of `values[first, first + count)` against `gradient`.
  void check(std::vector<double>& values, std::int64_t first, const double* gradient,
             std::int64_t count) const
  {
    constexpr double step = 1e-5;
    for (std::int64_t i = 0; i < count; ++i) {
      double& value = values[static_cast<std::size_t>(first + i)];
      const double before = value;
      value = before + step;
      const double above = loss();
      value = before - step;
      const double below = loss();
      value = before;
      CHECK(std::abs((above - below) / (2 * step) - gradient[i]) <
            1e-7 * (1 + std::abs(gradient[i])));
    }
  }
};

}  // namespace

TEST_CASE("reference: gradients of a whole pass equal central differences")
{
  random_inputs random{151};
  pass data{random};
  const auto gradients = mhar::reference::route_chain_gradient(data.problem);
  REQUIRE(gradients.sites.size() == pass::num_calls / 2);
  for (std::size_t c = 0; c < pass::num_calls; ++c) {
    const auto first = static_cast<std::int64_t>(c);
    data.check(data.rows, first * pass::elements, gradients.rows[c].data(), pass::elements);
    data.check(data.partials, first * pass::elements, gradients.partials[c].data(), pass::elements);
    if (c % 3 == 0) {
      data.check(data.privates, first * pass::elements, gradients.privates[c].data(),
                 pass::elements);
    }
    else {
      CHECK(gradients.privates[c].size() == 0);
    }
  }
  for (std::size_t s = 0; s < gradients.sites.size(); ++s) {
    const auto& site = gradients.sites[s];
    const auto first = static_cast<std::int64_t>(s);
    data.check(data.query, first * 2 * pass::width, site.query.data(), 2 * pass::width);
    data.check(data.norm_weight, first * pass::width, site.norm_weight.data(), pass::width);
    data.check(data.null_source, first * pass::width, site.null_source.data(), pass::width);
    data.check(data.gate, first, site.gate.data(), 1);
    CHECK(site.bias.size() == 0);
    CHECK(site.output_norm_weight.size() == 0);
  }
}

TEST_CASE("reference: a row that no call reads has gradient zero, and odd passes are refused")
{
  random_inputs random{152};
  pass data{random};
  const auto gradients = mhar::reference::route_chain_gradient(data.problem);
  CHECK(gradients.rows.back().abs().maxCoeff() == 0);
  CHECK(gradients.rows.front().abs().maxCoeff() > 0);
  data.problem.calls.back().num_rows = pass::num_calls + 1;
  CHECK_THROWS_AS(mhar::reference::route_chain(data.problem), mhar::invalid_argument);
  data.problem.calls.pop_back();
  CHECK_THROWS_AS(mhar::reference::route_chain_gradient(data.problem), mhar::invalid_argument);
}
