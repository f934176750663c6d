// SPDX-License-Identifier: Apache-2.0
//! device::route against the reference: random option sets, and the shapes that break kernels.
#include "device/awkward_calls.hpp"
#include "device/device_route.cuh"
#include "device/stream.cuh"
#include "support/call_case.hpp"
#include "support/device_memory.cuh"

#include <doctest/doctest.h>

using namespace mhar_test;

namespace {

template <class T>
void check_forward(const call_options<T>& options, random_inputs& random)
{
  call_case<T> data{options, random};
  device_memory memory;
  const auto forward = data.forward(memory);
  const auto dependency = random.integer(0, 1) == 0 ? mhar::device::dependent_launch::off
                                                    : mhar::device::dependent_launch::programmatic;
  run_on_device(
      forward.problem,
      [](const auto& problem, const mhar::device::context& context) {
        return mhar::device::route(problem, context);
      },
      dependency);
  memory.download();
  CHECK_PASSES(data.check_forward());
}

//! The same in two calls: weights are stored by other kernels than those for many positions of a common shape.
template <class T>
void check_without_weights(const call_options<T>& options, random_inputs& random)
{
  call_case<T> data{options, random};
  device_memory memory;
  auto forward = data.forward(memory);
  auto& outputs = forward.problem.outputs;
  const auto all = outputs;
  const auto run = [&] {
    run_on_device(forward.problem, [](const auto& problem, const mhar::device::context& context) {
      return mhar::device::route(problem, context);
    });
  };
  outputs = {};
  outputs.weights = all.weights;
  run();
  outputs = all;
  outputs.weights = nullptr;
  run();
  memory.download();
  CHECK_PASSES(data.check_forward());
}

template <class T>
void check_many_positions(std::uint64_t stream)
{
  if (skip_without_gpu()) { return; }
  random_inputs random{stream};
  const auto coin = [&] { return random.integer(0, 1) == 1; };
  constexpr awkward shapes[] = {{512, 4},  {1024, 8}, {1280, 8}, {1280, 1},
                                {2048, 8}, {4096, 8}, {7168, 1}, {7168, 8}};
  for (const awkward& shape : shapes) {
    const bool wide = shape.width > 1280;
    for (int i = 0; i < (wide ? 1 : 3); ++i) {
      const auto num_rows = static_cast<int>(random.integer(1, wide ? 5 : 9));
      // More than eight to each multiprocessor, and not as many to each.
      call_options<T> options = with_everything<T>(1100, shape.width, shape.num_heads, num_rows);
      if (wide || coin()) { options.norm = mhar::output_norm::none; }
      options.null_source = coin();
      options.bias = coin();
      options.partial = coin();
      options.gate = coin();
      options.norm_weight = coin();
      if (coin()) { options.rows = row_layout::listed; }
      if (coin()) { options.states = mhar::element::float32; }
      if (coin()) { options.outputs = mhar::element::float32; }
      check_without_weights<T>(options, random);
    }
  }
}

template <class T>
void check_random_calls(std::uint64_t stream)
{
  if (skip_without_gpu()) { return; }
  random_inputs random{stream};
  const int count = number_of_calls(120);
  for (int i = 0; i < count; ++i) {
    // Mostly small; some with several blocks, stages and batches.
    call_options<T> options = random_options<T>(random, random.integer(0, 3) == 0 ? 6000 : 400);
    if (random.integer(0, 3) == 0) { options.num_rows += static_cast<int>(random.integer(0, 40)); }
    check_forward<T>(options, random);
  }
}

template <class T>
void check_awkward_shapes(std::uint64_t stream)
{
  if (skip_without_gpu()) { return; }
  random_inputs random{stream};
  for (const awkward& shape : awkward_shapes) {
    call_options<T> options = with_everything<T>(3, shape.width, shape.num_heads, 5);
    check_forward<T>(options, random);
    options.offset = 1;
    options.gap = 1;
    options.rows = row_layout::listed;
    check_forward<T>(options, random);
    // Enough positions that a block, not a cluster, serves each.
    if (shape.width % 128 == 0 || shape.width < 200) {
      check_forward<T>(with_everything<T>(70, shape.width, shape.num_heads, 5), random);
    }
  }
}

}  // namespace

TEST_CASE("route: random calls of bfloat16 rows equal the reference")
{
  check_random_calls<mhar::bfloat16>(301);
}
TEST_CASE("route: random calls of float16 rows equal the reference")
{
  check_random_calls<mhar::float16>(302);
}
TEST_CASE("route: random calls of float rows equal the reference")
{
  check_random_calls<float>(303);
}
TEST_CASE("route: random calls of double rows equal the reference")
{
  check_random_calls<double>(304);
}

TEST_CASE("route: awkward shapes of bfloat16 rows") { check_awkward_shapes<mhar::bfloat16>(305); }
TEST_CASE("route: awkward shapes of float16 rows") { check_awkward_shapes<mhar::float16>(306); }
TEST_CASE("route: awkward shapes of float rows") { check_awkward_shapes<float>(307); }
TEST_CASE("route: awkward shapes of double rows") { check_awkward_shapes<double>(308); }

TEST_CASE("route: many positions of bfloat16 rows") { check_many_positions<mhar::bfloat16>(310); }
TEST_CASE("route: many positions of float16 rows") { check_many_positions<mhar::float16>(311); }

TEST_CASE("route: widths that no block holds, and more rows than one batch")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{309};
  check_forward<mhar::bfloat16>(with_everything<mhar::bfloat16>(2, 60000, 4, 6), random);
  check_forward<float>(with_everything<float>(2, 40000, 1, 3), random);
  check_forward<float>(with_everything<float>(2, 20000, 20000, 3), random);
  check_forward<mhar::bfloat16>(with_everything<mhar::bfloat16>(300, 64, 2, 193), random);
  for (const int num_rows : {0, 1, 2, 3, 4, 5, 8, 9, 12, 13}) {
    check_forward<mhar::bfloat16>(with_everything<mhar::bfloat16>(7, 7168, 1, num_rows), random);
    check_forward<mhar::bfloat16>(with_everything<mhar::bfloat16>(200, 1280, 8, num_rows), random);
  }
}
