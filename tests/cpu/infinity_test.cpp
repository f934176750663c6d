// SPDX-License-Identifier: Apache-2.0
//! In a sweep, too, a factor of exactly 0 is not multiplied by an infinity on the CPU.
#include "cpu/cpu_context.hpp"
#include "support/random.hpp"

#include <mhar/cpu/backend.hpp>

#include <cmath>
#include <limits>

using namespace mhar_test;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr int num_calls = 3;
constexpr int num_rows = 4;
constexpr std::int64_t width = 48;

//! One backward pass over three rows and the calls that read them; calls have gates of 0 where asked.
struct closed_pass
{
  mhar::shape extent{2, width, 2, 0};
  random_inputs random{251};
  std::vector<float> rows = random.vector<float>(num_rows * 2 * width);
  std::vector<float> upstream = random.vector<float>(num_calls * 2 * width);
  std::vector<float> queries = random.vector<float>(num_calls * width);
  std::vector<float> gates = std::vector<float>(num_calls, 0.0f);
  std::vector<float> inverse_rms = std::vector<float>(num_rows * 2, 1.0f);
  std::vector<float> lse = std::vector<float>(num_calls * 4, 1.0f);
  std::vector<float> dots = std::vector<float>(num_calls * 4, 0.5f);
  std::vector<float> gradient = std::vector<float>(2 * width, 7.0f);
  std::vector<float> query_sums = std::vector<float>(num_calls * width);
  std::vector<float> bias_sums = std::vector<float>(num_calls * (num_rows + 1));

  void run(mhar::key_rounding rounding)
  {
    mhar::gather_problem<float> problem;
    problem.extent = extent;
    problem.sites.query = queries.data();
    problem.sites.gate = problem.sites.logit_gate = gates.data();
    problem.sites.rounding = rounding;
    problem.rows = mhar::source_major(rows.data(), 2, width);
    problem.inverse_rms = inverse_rms.data();
    problem.top_row = 2;
    problem.num_rows = 1;
    problem.call_gradients = mhar::source_major(upstream.data(), 2, width);
    problem.num_calls = num_calls;
    problem.lse = lse.data();
    problem.dot = dots.data();
    problem.row_gradient = {gradient.data(), width};
    problem.partials.query = query_sums.data();
    problem.partials.bias = bias_sums.data();
    problem.partials.bias_stride = num_rows;
    problem.partials.num_chunks = 1;
    problem.partials.num_calls = num_calls;
    mhar::sweep_limits limits;
    limits.extent = extent;
    limits.max_range = num_calls;
    cpu_context context{mhar::cpu::backend::workspace_bytes<float>(limits)};
    mhar::check(mhar::cpu::gather(problem, context.get()));
    CHECK(context.guards_intact());
  }
};

}  // namespace

TEST_CASE("cpu: calls with closed gates leave no gradient in a sweep, whatever comes down to them")
{
  for (const mhar::key_rounding rounding :
       {mhar::key_rounding::none, mhar::key_rounding::storage}) {
    for (const float bad : {-infinity, std::nanf("")}) {
      CAPTURE(bad);
      closed_pass pass;
      pass.upstream[5] = infinity;                    // position 0, head 0
      pass.upstream[2 * width + 30] = std::nanf("");  // call 1, head 1
      pass.rows[2 * 2 * width + width + 1] = bad;     // position 1 of the row
      pass.inverse_rms[5] = std::isnan(bad) ? bad : 0;
      pass.run(rounding);
      for (const float value : pass.gradient) { CHECK(value == 0.0f); }
      for (const float value : pass.query_sums) { CHECK(value == 0.0f); }
      for (const float value : pass.bias_sums) { CHECK(value == 0.0f); }
    }
  }
}

TEST_CASE("cpu: what is infinite in a sweep stays with the pairs that have weight")
{
  closed_pass pass;
  pass.upstream[5] = infinity;  // of call 0, whose gate is closed; call 1's is open
  pass.gates[1] = 1;
  pass.run(mhar::key_rounding::none);
  const std::vector<float> with = pass.gradient;
  closed_pass finite;
  finite.gates[1] = 1;
  finite.run(mhar::key_rounding::none);
  CHECK(with == finite.gradient);
  CHECK(pass.query_sums == finite.query_sums);
}
