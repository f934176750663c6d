// SPDX-License-Identifier: Apache-2.0
//! What output_gradient makes of null sources whose squares overflow.
#include "device_access.cuh"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace {

using mhar::bfloat16;
using device = mhar::device::backend;
using access = mhar_test::backend_access<device>;
template <class T>
using array = mhar_test::backend_array<device, T>;

//! Partial sums of the query's and the null source's gradients, added over chunks. A mix that starts `offset` elements past a 16-byte
//! boundary is left to the kernel that serves every shape.
std::vector<double> null_gradients(const mhar::shape& extent, std::int64_t offset)
{
  mhar_test::random_inputs random{90};
  const std::int64_t elements = extent.num_positions * extent.width;
  const std::int64_t heads = extent.num_positions * extent.num_heads;
  const array<float> query{random.vector<float>(extent.width, 0.1)};
  std::vector<float> large(static_cast<std::size_t>(extent.width));
  for (std::size_t k = 0; k < large.size(); ++k) { large[k] = k % 3 == 0 ? 1e19f : -1e19f; }
  const array<float> null_source{large};
  const array<bfloat16> upstream{random.vector<bfloat16>(elements)};
  const array<bfloat16> mix{random.vector<bfloat16>(elements + offset)};
  const array<float> folded{3 * extent.width + 2 + extent.num_heads};
  const array<bfloat16> gradient{elements};
  const array<float> dot{heads};

  mhar::site_parameters site;
  site.query = static_cast<const float*>(query.data());
  site.null_source = static_cast<const float*>(null_source.data());
  const int num_sources = 3;
  mhar::fold_problem<bfloat16> fold;
  fold.extent = extent;
  fold.num_calls = 1;
  fold.sites = &site;
  fold.num_sources = &num_sources;
  fold.num_rows = 2;
  fold.folded.query = folded.data();
  fold.folded.null_source = fold.folded.query + extent.width;
  fold.folded.gate = fold.folded.null_source + extent.width;
  fold.folded.logit_gate = fold.folded.gate + 1;
  fold.folded.null_logit = fold.folded.logit_gate + 1;
  mhar::check(device::fold(fold, access::context()));
  // Of half the weight at every position.
  const std::vector<float> logits =
      array<float>::download(fold.folded.null_logit, static_cast<std::size_t>(extent.num_heads));
  std::vector<float> sums;
  for (std::int64_t p = 0; p < extent.num_positions; ++p) {
    for (const float logit : logits) { sums.push_back(logit + std::log(2.0f)); }
  }
  const array<float> lse{sums};

  const int chunks = device::num_chunks(extent);
  const array<float> partials{
      std::vector<float>(static_cast<std::size_t>(2 * chunks * extent.width), 0.0f)};
  mhar::output_gradient_problem<bfloat16> problem;
  problem.extent = extent;
  problem.sites = fold.folded;
  problem.output_gradient = {upstream.data(), extent.width};
  problem.mix = {static_cast<const bfloat16*>(mix.data() + offset), extent.width};
  problem.lse = lse.data();
  problem.call_gradient = {gradient.data(), extent.width};
  problem.dot = dot.data();
  problem.partials.query = partials.data();
  problem.partials.null_source = partials.data() + chunks * extent.width;
  problem.partials.num_chunks = chunks;
  problem.partials.num_calls = 1;
  const std::size_t bytes = device::workspace_bytes<bfloat16>({extent, 1, 2});
  const array<unsigned char> workspace{static_cast<std::int64_t>(bytes)};
  mhar::check(device::output_gradient(
      problem, mhar::device::context{access::stream(), workspace.data(), bytes}));

  const std::vector<double> all = partials.values();
  const auto width = static_cast<std::size_t>(extent.width);
  std::vector<double> result(2 * width);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t which = i / width < static_cast<std::size_t>(chunks) ? 0 : width;
    result[which + i % width] += all[i];
  }
  return result;
}

TEST_CASE("device wide sweeps: a null source whose squares overflow")
{
  if (mhar_test::skip_without_gpu()) { return; }
  for (const mhar::shape extent : {mhar::shape{9, 2 * 64, 2}, mhar::shape{9, 8 * 160, 8},
                                   mhar::shape{9, 2 * 256, 2}, mhar::shape{9, 7168, 1}}) {
    CAPTURE(extent.width);
    const std::vector<double> expected = null_gradients(extent, 1);
    const std::vector<double> found = null_gradients(extent, 0);
    const std::size_t width = expected.size() / 2;
    for (const std::size_t first : {std::size_t{0}, width}) {
      double size = 0;
      double difference = 0;
      for (std::size_t k = first; k < first + width; ++k) {
        size = std::max(size, std::abs(expected[k]));
        difference = std::max(difference, std::abs(found[k] - expected[k]));
      }
      CAPTURE(first);
      CHECK(size > 0);
      CHECK(difference <= 1e-3 * size);
    }
  }
}

}  // namespace
