// SPDX-License-Identifier: Apache-2.0
//! Passes over so many positions that blocks of some thousand of them are more than there are chunks of partial sums.
#include "device/device_sweep.cuh"
#include "device/stream.cuh"
#include "support/device.cuh"
#include "support/random.hpp"

#include <mhar/device/backend.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace mhar_test;
using mhar::bfloat16;

namespace {

constexpr int heads = 2;
constexpr std::int64_t width = 128;
//! More than a pass takes without segments.
constexpr int calls = 65;

//! What every position and every call has: inputs are read with strides of 0.
struct inputs
{
  random_inputs random{911};
  device_buffer<bfloat16> row{random.vector<bfloat16>(width)};
  device_buffer<bfloat16> gradient{random.vector<bfloat16>(width)};
  device_buffer<float> query{random.vector<float>(calls * width, 0.3)};
  device_buffer<float> folded{calls * width};
  device_buffer<float> gates{2 * calls};
  device_buffer<unsigned char> packed{
      static_cast<std::int64_t>(mhar::device::packed_bytes<bfloat16>({1, width, heads}, calls))};

  mhar::folded_sites<float> fold(const device_stream& stream)
  {
    std::vector<mhar::site_parameters> sites(calls);
    for (std::size_t call = 0; call < calls; ++call) {
      sites[call].query = query.data() + call * width;
    }
    const std::vector<int> sources(calls, 2);
    mhar::fold_problem<bfloat16> problem;
    problem.extent = {1, width, heads};
    problem.num_calls = calls;
    problem.sites = sites.data();
    problem.num_sources = sources.data();
    problem.folded.query = folded.data();
    problem.folded.gate = gates.data();
    problem.folded.logit_gate = gates.data() + calls;
    problem.folded.packed = packed.data();
    mhar::check(mhar::device::fold(problem, mhar::device::context{stream.get()}));
    return problem.folded;
  }
};

//! The gradient of the folded queries of one pass over all calls, and whether nothing else was written.
std::vector<double> query_gradients(std::int64_t positions, inputs& in, const device_stream& stream)
{
  mhar::gather_problem<bfloat16> problem;
  problem.extent = {positions, width, heads};
  problem.sites = in.fold(stream);
  problem.rows.base = in.row.data();
  problem.num_rows = 1;
  const device_buffer<float> inverse_rms{
      std::vector<float>(static_cast<std::size_t>(positions), 1)};
  problem.inverse_rms = inverse_rms.data();
  problem.call_gradients.base = in.gradient.data();
  problem.num_calls = calls;
  const auto sums = static_cast<std::size_t>(calls * positions * heads);
  const device_buffer<float> lse{std::vector<float>(sums, 2)};
  const device_buffer<float> dot{std::vector<float>(sums, 0.5f)};
  problem.lse = lse.data();
  problem.dot = dot.data();
  problem.states.type = mhar::element::bfloat16;
  const device_buffer<bfloat16> gradient{positions * width};
  problem.row_gradient = {gradient.data(), width};
  const int chunks = mhar::device::num_chunks(problem.extent);
  const device_buffer<float> partials{
      std::vector<float>(static_cast<std::size_t>(chunks * calls * width))};
  problem.partials.query = partials.data();
  problem.partials.num_chunks = chunks;
  problem.partials.num_calls = calls;
  mhar::check(mhar::device::gather(problem, mhar::device::context{stream.get()}));
  stream.wait();
  CHECK(partials.guards_intact());
  CHECK(gradient.guards_intact());
  const std::vector<float> found = partials.download();
  std::vector<double> result(static_cast<std::size_t>(calls * width));
  for (std::size_t i = 0; i < found.size(); ++i) { result[i % result.size()] += found[i]; }
  return result;
}

}  // namespace

TEST_CASE("device tensor sweeps: many positions and calls fill no more chunks than there are")
{
  if (skip_without_gpu()) { return; }
  const device_stream stream;
  inputs in;
  constexpr std::int64_t few = 8;
  constexpr std::int64_t many = 300000;
  const std::vector<double> expected = query_gradients(few, in, stream);
  const std::vector<double> found = query_gradients(many, in, stream);
  double largest = 0;
  double error = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double scaled = expected[i] * (many / few);
    largest = (std::max)(largest, std::abs(scaled));
    error = (std::max)(error, std::abs(found[i] - scaled));
  }
  CHECK(largest > 1);
  CHECK(error <= 1e-4 * largest);
}
