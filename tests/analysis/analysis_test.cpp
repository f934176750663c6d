// SPDX-License-Identifier: Apache-2.0
//! Head maps, entropies and the width-disagreement probe, on weights known by hand and on routed
//! ones.
#include "support/call_case.hpp"

#include <mhar/analysis/disagreement.hpp>
#include <mhar/analysis/heads.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace mhar_test;
using doctest::Approx;
using mhar::analysis::depth_weights;

namespace {

// [P = 2, H = 2, N = 3]
const std::vector<float> weights = {1, 0, 0, .5f, .5f, 0,  //
                                    0, 1, 0, .5f, 0,   .5f};
constexpr double log_2 = 0.6931471805599453;

depth_weights<float> view(const std::vector<float>& values, std::int64_t positions, int heads,
                          int sources)
{
  return {values.data(), positions, heads, sources};
}

//! The weights of the same random call for another number of heads.
std::vector<float> routed(call_case<float>& data, int num_heads)
{
  auto bound = data.forward(host_memory{});
  bound.problem.extent.num_heads = num_heads;
  std::vector<float> result(static_cast<std::size_t>(bound.problem.extent.num_positions) *
                            static_cast<std::size_t>(num_heads * bound.problem.num_rows));
  bound.problem.outputs = {};
  bound.problem.outputs.weights = result.data();
  mhar::reference::route(bound.problem);
  return result;
}

}  // namespace

TEST_CASE("analysis: mean weights and deviations of heads")
{
  const auto mean = mhar::analysis::mean_weights(view(weights, 2, 2, 3));
  CHECK(mean.values == std::vector<double>{.5, .5, 0, .5, .25, .25});
  const auto deviation = mhar::analysis::head_deviation(view(weights, 2, 2, 3));
  CHECK(deviation.values == std::vector<double>{0, .125, -.125, 0, -.125, .125});
  CHECK(deviation.at(1, 2) == .125);
}

TEST_CASE("analysis: entropy of heads")
{
  const auto entropy = mhar::analysis::head_entropy(view(weights, 2, 2, 3));
  CHECK(entropy[0] == 0);
  CHECK(entropy[1] == Approx(log_2));
  const std::vector<float> uniform(8, .25f);
  CHECK(mhar::analysis::head_entropy(view(uniform, 2, 1, 4))[0] == Approx(2 * log_2));
  const std::vector<float> lost = {NAN, NAN, NAN, .5f, .5f, 0};
  CHECK(std::isnan(mhar::analysis::head_entropy(view(lost, 1, 2, 3))[0]));
  CHECK(std::isnan(mhar::analysis::head_disagreement(view(lost, 1, 2, 3))));
}

TEST_CASE("analysis: disagreement of slices with what they share")
{
  const std::vector<float> shared = {.5f, .25f, .25f, .5f, .25f, .25f};
  // KL of (1,0,0), (.5,.5,0), (0,1,0) and (.5,0,.5) from (.5,.25,.25): log 2, log(2)/2, 2 log 2,
  // log(2)/2.
  CHECK(mhar::analysis::width_disagreement(view(weights, 2, 2, 3), view(shared, 2, 1, 3)) ==
        Approx(log_2));
  CHECK(mhar::analysis::width_disagreement(view(shared, 2, 1, 3), view(shared, 2, 1, 3)) == 0);

  const std::vector<float> narrow = {1, 0, 0, 1, 0, 0};
  CHECK(mhar::analysis::width_disagreement(view(weights, 2, 2, 3), view(narrow, 2, 1, 3)) ==
        std::numeric_limits<double>::infinity());
}

TEST_CASE("analysis: disagreement of heads lies between 0 and log H")
{
  const std::vector<float> alike = {.5f, .5f, .5f, .5f};
  CHECK(mhar::analysis::head_disagreement(view(alike, 1, 2, 2)) == Approx(0));
  const std::vector<float> apart = {1, 0, 0, 1};
  CHECK(mhar::analysis::head_disagreement(view(apart, 1, 2, 2)) == Approx(log_2));
}

TEST_CASE("analysis: without positions everything is 0")
{
  const auto none = view({}, 0, 2, 3);
  CHECK(mhar::analysis::mean_weights(none).values == std::vector<double>(6));
  CHECK(mhar::analysis::head_entropy(none) == std::vector<double>(2));
  CHECK(mhar::analysis::head_disagreement(none) == 0);
  CHECK(mhar::analysis::width_disagreement(none, view({}, 0, 1, 3)) == 0);
}

TEST_CASE("analysis: the probe finds no disagreement in a query of zeros, and some in any other")
{
  random_inputs random{401};
  call_options<float> options;
  options.extent = {20, 64, 1, 0};
  options.spread = 0;
  call_case<float> zero{options, random};
  const auto probe = [](call_case<float>& data) {
    const std::vector<float> slices = routed(data, 4);
    const std::vector<float> shared = routed(data, 1);
    return mhar::analysis::width_disagreement(view(slices, 20, 4, 4), view(shared, 20, 1, 4));
  };
  CHECK(probe(zero) == Approx(0));
  options.spread = 2;
  call_case<float> some{options, random};
  CHECK(probe(some) > 0.01);
}

TEST_CASE("analysis: weights of no meaning are refused by name")
{
  const std::vector<float> values(24, 0.5f);
  const mhar::analysis::depth_weights<float> good{values.data(), 2, 3, 4};
  const mhar::analysis::depth_weights<float> shared{values.data(), 2, 1, 4};
  CHECK(mhar::analysis::width_disagreement(good, shared) == 0);
  const auto refused = [](const char* argument, const auto& call) {
    try {
      static_cast<void>(call());
      FAIL_CHECK("accepted");
    } catch (const mhar::invalid_argument& failure) {
      CHECK(std::string{failure.failure().argument} == argument);
    }
  };
  for (const mhar::analysis::depth_weights<float>& bad :
       {mhar::analysis::depth_weights<float>{values.data(), -1, 3, 4},
        mhar::analysis::depth_weights<float>{values.data(), 2, 0, 4},
        mhar::analysis::depth_weights<float>{values.data(), 2, 3, -4},
        mhar::analysis::depth_weights<float>{nullptr, 2, 3, 4}}) {
    refused("weights", [&] { return mhar::analysis::mean_weights(bad); });
    refused("weights", [&] { return mhar::analysis::head_deviation(bad); });
    refused("weights", [&] { return mhar::analysis::head_entropy(bad); });
    refused("weights", [&] { return mhar::analysis::head_disagreement(bad); });
    refused("slices", [&] { return mhar::analysis::width_disagreement(bad, shared); });
  }
  for (const mhar::analysis::depth_weights<float>& other :
       {mhar::analysis::depth_weights<float>{values.data(), 1, 1, 4},
        mhar::analysis::depth_weights<float>{values.data(), 2, 1, 3}, good}) {
    refused("shared", [&] { return mhar::analysis::width_disagreement(good, other); });
  }
}
