// SPDX-License-Identifier: Apache-2.0
//! A NaN among the logits is not lost on the CPU, wherever it stands and whatever its bits are.
#include "cpu/cpu_runs.hpp"

#include <mhar/cpu/detail/exponential.hpp>
#include <mhar/cpu/detail/softmax.hpp>

#include <cmath>
#include <limits>

using namespace mhar_test;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

//! A quiet NaN with these low bits; 0x7fffffff is the one that CUDA makes.
float not_a_number(std::uint32_t payload)
{
  return mhar::detail::bit_cast<float>(0x7fc00000u | payload);
}
constexpr std::uint32_t payloads[] = {0, 1, 0x1ff, 0x3fffff};

}  // namespace

TEST_CASE("cpu: exp of NaN is NaN, whatever its bits")
{
  for (const std::uint32_t payload : payloads) {
    CHECK(std::isnan(mhar::cpu::detail::exponential(not_a_number(payload))));
    CHECK(std::isnan(mhar::cpu::detail::exponential(-not_a_number(payload))));
  }
}

TEST_CASE("cpu: a softmax with a NaN is NaN, beside -inf and finite logits, in any order")
{
  for (const std::uint32_t payload : payloads) {
    for (const float other : {-infinity, 0.0f}) {
      for (int place = 0; place < 3; ++place) {
        float logits[3] = {other, other, other};
        logits[place] = not_a_number(payload);
        for (const float carried : {-infinity, 0.0f}) {
          float weights[16] = {logits[0], logits[1], logits[2]};  // room for whole blocks
          const auto sum = mhar::cpu::detail::softmax(weights, 3, carried);
          CHECK(std::isnan(sum.lse));
          CHECK(std::isnan(sum.carried));
          for (int n = 0; n < 3; ++n) { CHECK(std::isnan(weights[n])); }
        }
      }
    }
  }
}

TEST_CASE("cpu: a query of NaN gives NaN in its head, and the other head keeps its bits")
{
  const mhar::shape extent{2, 8, 2, 0};
  random_inputs random{241};
  const std::vector<float> rows = random.vector<float>(3 * 16);
  std::vector<float> query = random.vector<float>(8);
  std::vector<float> good(16);
  std::vector<float> bad(16);
  mhar::route_problem<float> problem;
  problem.extent = extent;
  problem.num_rows = 3;
  problem.rows = mhar::source_major(rows.data(), 2, 8);
  problem.site.query = query.data();
  problem.outputs.y = {good.data(), 8};
  route_on_cpu(problem);
  query[1] = not_a_number(0);
  problem.outputs.y = {bad.data(), 8};
  route_on_cpu(problem);
  for (std::size_t i = 0; i < 16; ++i) {
    if (i % 8 < 4) { CHECK(std::isnan(bad[i])); }
    else {
      CHECK(bad[i] == good[i]);
    }
  }
}
