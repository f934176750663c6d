// SPDX-License-Identifier: Apache-2.0
//! device::route_gradient against the reference: random option sets, and the shapes that break
//! kernels.
#include "device/awkward_calls.hpp"
#include "device/device_route_gradient.cuh"
#include "device/stream.cuh"
#include "support/call_case.hpp"
#include "support/device_memory.cuh"

#include <doctest/doctest.h>

using namespace mhar_test;

namespace {

constexpr auto on_device = [](const auto& problem, const mhar::device::context& context) {
  return mhar::device::route_gradient(problem, context);
};

template <class T>
void check_backward(const call_options<T>& options, random_inputs& random)
{
  call_case<T> data{options, random};
  device_memory memory;
  const auto backward = data.backward(memory);
  const auto dependency = random.integer(0, 1) == 0 ? mhar::device::dependent_launch::off
                                                    : mhar::device::dependent_launch::programmatic;
  run_on_device(backward.problem, on_device, dependency);
  memory.download();
  CHECK_PASSES(data.check_backward());
}

template <class T>
void check_random_calls(std::uint64_t stream)
{
  if (skip_without_gpu()) { return; }
  random_inputs random{stream};
  const int count = number_of_calls(120);
  for (int i = 0; i < count; ++i) {
    // Mostly small; some with several blocks and batches.
    call_options<T> options = random_options<T>(random, random.integer(0, 3) == 0 ? 6000 : 400);
    if (random.integer(0, 3) == 0) { options.num_rows += static_cast<int>(random.integer(0, 40)); }
    check_backward<T>(options, random);
  }
}

//! Every option drawn but those that keep a call from the kernels with a ring.
template <class T>
call_options<T> ring_options(random_inputs& random, std::int64_t num_positions, std::int64_t width,
                             int num_heads, int num_rows)
{
  constexpr mhar::element types[] = {mhar::element_of<T>::value,
                                     mhar::element_of<mhar::accumulate_t<T>>::value};
  const auto any_type = [&] { return types[random.integer(0, 1)]; };
  call_options<T> options = random_options<T>(random);
  options.extent = {num_positions, width, num_heads, 0};
  options.num_rows = num_rows;
  options.rounding = mhar::key_rounding::none;
  options.gap = 8 * random.integer(0, 1);
  options.offset = 0;
  options.activations = any_type();
  options.outputs = any_type();
  options.states = any_type();
  options.row_gradient_type = any_type();
  return options;
}

struct call_extents
{
  std::int64_t num_positions;
  std::int64_t width;
  int num_heads;
  int num_rows;
};
//! Chunks of positions of one and of several, one and two chunks of columns per thread, groups of 1
//! to 32 lanes, heads that share a warp and heads of many warps, one and several batches.
constexpr call_extents ring_shapes[] = {
    {3, 4096, 8, 9},  {2, 1280, 8, 37}, {300, 64, 2, 5},   {3, 896, 1, 20},  {5, 512, 64, 3},
    {2, 8192, 8, 5},  {2, 7168, 1, 9},  {3, 640, 4, 70},   {150, 96, 3, 1},  {40, 128, 16, 2},
    {2, 3584, 28, 4}, {2, 6144, 2, 12}, {300, 2048, 2, 2}, {280, 2048, 1, 7}};

template <class T>
void check_ring_shapes(std::uint64_t stream)
{
  if (skip_without_gpu()) { return; }
  random_inputs random{stream};
  for (const call_extents& shape : ring_shapes) {
    for (int i = 0; i < number_of_calls(4); ++i) {
      check_backward<T>(ring_options<T>(random, shape.num_positions, shape.width, shape.num_heads,
                                        shape.num_rows),
                        random);
    }
  }
}

//! What training asks for most: lse and mix given, no output norm, so that do is dy.
template <class T>
void check_plain_calls(std::uint64_t stream)
{
  if (skip_without_gpu()) { return; }
  random_inputs random{stream};
  for (const call_extents& shape : ring_shapes) {
    for (const std::int64_t num_positions : {shape.num_positions, std::int64_t{1}}) {
      call_options<T> options =
          ring_options<T>(random, num_positions, shape.width, shape.num_heads, shape.num_rows);
      options.norm = mhar::output_norm::none;
      options.combined_upstream = false;
      options.given_lse = options.given_mix = true;
      options.activations = options.states = mhar::element_of<T>::value;
      call_case<T> data{options, random};
      data.results().partial_gradient = {};
      device_memory memory;
      const auto backward = data.backward(memory);
      run_on_device(backward.problem, on_device);
      memory.download();
      CHECK_PASSES(data.check_backward());
    }
  }
}

template <class T>
void check_awkward_shapes(std::uint64_t stream)
{
  if (skip_without_gpu()) { return; }
  random_inputs random{stream};
  for (const awkward& shape : awkward_shapes) {
    call_options<T> options = with_everything<T>(3, shape.width, shape.num_heads, 5);
    check_backward<T>(options, random);
    options.offset = 1;
    options.gap = 1;
    options.rows = row_layout::listed;
    options.given_mix = false;
    check_backward<T>(options, random);
  }
}

}  // namespace

TEST_CASE("route_gradient: random calls of bfloat16 rows equal the reference")
{
  check_random_calls<mhar::bfloat16>(401);
}
TEST_CASE("route_gradient: random calls of float16 rows equal the reference")
{
  check_random_calls<mhar::float16>(402);
}
TEST_CASE("route_gradient: random calls of float rows equal the reference")
{
  check_random_calls<float>(403);
}
TEST_CASE("route_gradient: random calls of double rows equal the reference")
{
  check_random_calls<double>(404);
}

TEST_CASE("route_gradient: rings of bfloat16 rows") { check_ring_shapes<mhar::bfloat16>(405); }
TEST_CASE("route_gradient: rings of float16 rows") { check_ring_shapes<mhar::float16>(406); }
TEST_CASE("route_gradient: rings of float rows") { check_ring_shapes<float>(407); }

TEST_CASE("route_gradient: plain calls of bfloat16 rows")
{
  check_plain_calls<mhar::bfloat16>(413);
}
TEST_CASE("route_gradient: plain calls of float16 rows") { check_plain_calls<mhar::float16>(414); }
TEST_CASE("route_gradient: plain calls of float rows") { check_plain_calls<float>(415); }

TEST_CASE("route_gradient: awkward shapes of bfloat16 rows")
{
  check_awkward_shapes<mhar::bfloat16>(408);
}
TEST_CASE("route_gradient: awkward shapes of float16 rows")
{
  check_awkward_shapes<mhar::float16>(409);
}
TEST_CASE("route_gradient: awkward shapes of float rows") { check_awkward_shapes<float>(410); }
TEST_CASE("route_gradient: awkward shapes of double rows") { check_awkward_shapes<double>(411); }

TEST_CASE("route_gradient: widths that no block holds, and more rows than one batch")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{412};
  check_backward<mhar::bfloat16>(with_everything<mhar::bfloat16>(2, 60000, 4, 6), random);
  check_backward<float>(with_everything<float>(2, 20000, 20000, 3), random);
  check_backward<mhar::bfloat16>(with_everything<mhar::bfloat16>(300, 64, 2, 193), random);
  for (const int num_rows : {0, 1, 2, 3, 4, 5, 8, 9, 12, 13}) {
    call_options<mhar::bfloat16> options = with_everything<mhar::bfloat16>(7, 7168, 1, num_rows);
    check_backward<mhar::bfloat16>(options, random);
    // All rows of a position in shared memory at once, where they fit.
    options.given_lse = false;
    options.given_mix = false;
    options.given_combined = false;
    check_backward<mhar::bfloat16>(options, random);
  }
}
