// SPDX-License-Identifier: Apache-2.0
//! Passes of which several rows are new, over more positions than blocks that have a multiprocessor each.
#include "device/device_sweep.cuh"
#include "device/stream.cuh"
#include "support/device.cuh"
#include "support/random.hpp"

#include <mhar/device/backend.cuh>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace mhar_test;
using mhar::bfloat16;

namespace {

constexpr int num_rows = 3;

//! The average of rows that are all new, by a call whose query is zero.
void averages_new_rows(const mhar::shape& extent)
{
  const device_stream stream;
  const mhar::device::context context{stream.get()};
  random_inputs random{912};
  const std::int64_t elements = extent.num_positions * extent.width;
  const std::vector<bfloat16> values = random.vector<bfloat16>(num_rows * elements);
  const device_buffer<bfloat16> rows{values};
  const device_buffer<float> query{std::vector<float>(static_cast<std::size_t>(extent.width))};
  const device_buffer<float> folded{extent.width};
  const device_buffer<float> gates{2};
  const device_buffer<unsigned char> packed{
      static_cast<std::int64_t>(mhar::device::packed_bytes<bfloat16>(extent, 1))};
  mhar::site_parameters site;
  site.query = query.data();
  const int sources = num_rows;
  mhar::fold_problem<bfloat16> fold;
  fold.extent = extent;
  fold.num_calls = 1;
  fold.sites = &site;
  fold.num_sources = &sources;
  fold.folded.query = folded.data();
  fold.folded.gate = gates.data();
  fold.folded.logit_gate = gates.data() + 1;
  fold.folded.packed = packed.data();
  mhar::check(mhar::device::fold(fold, context));

  const device_buffer<float> inverse_rms{num_rows * extent.num_positions};
  const device_buffer<bfloat16> y{elements};
  mhar::advance_problem<bfloat16> pass;
  pass.extent = extent;
  pass.sites = fold.folded;
  pass.num_calls = 1;
  pass.rows = mhar::source_major<bfloat16>(rows.data(), extent.num_positions, extent.width);
  pass.num_rows = pass.num_new_rows = num_rows;
  pass.inverse_rms = inverse_rms.data();
  pass.outputs.y = {y.data(), extent.width};
  mhar::check(mhar::device::advance(pass, context));
  stream.wait();

  CHECK(inverse_rms.guards_intact());
  const std::vector<float> found = inverse_rms.download();
  const std::vector<bfloat16> mixed = y.download();
  int wrong = 0;
  for (std::int64_t row = 0; row < num_rows * extent.num_positions; ++row) {
    double squares = 0;
    for (std::int64_t k = 0; k < extent.width; ++k) {
      const double value = mhar::to_float(values[static_cast<std::size_t>(row * extent.width + k)]);
      squares += value * value;
    }
    const double expected = 1 / std::sqrt(squares / static_cast<double>(extent.width) + pass.eps);
    wrong += std::abs(found[static_cast<std::size_t>(row)] - expected) <= 1e-5 * expected ? 0 : 1;
  }
  CHECK(wrong == 0);
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    float sum = 0;
    for (std::size_t n = 0; n < num_rows; ++n) {
      sum += mhar::to_float(values[n * mixed.size() + i]);
    }
    wrong += std::abs(mhar::to_float(mixed[i]) - sum / num_rows) <= 2e-2f ? 0 : 1;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("device tensor sweeps: several new rows at many positions")
{
  if (skip_without_gpu()) { return; }
  for (const std::int64_t positions : {9, 1056, 1057, 3001}) {
    for (const int head_width : {64, 128, 160}) {
      CAPTURE(positions);
      CAPTURE(head_width);
      averages_new_rows({positions, 2 * head_width, 2});
    }
  }
}
