// SPDX-License-Identifier: Apache-2.0
//! What the CUDA backend asks of a workspace: that it lies over no array of the problem, and on a 256-byte boundary.
#include "device/device_route.cuh"
#include "device/device_route_gradient.cuh"
#include "fuzz/device_fuzz.cuh"
#include "fuzz/spoilt.hpp"
#include "support/device_memory.cuh"
#include "support/workspace_overlaps.hpp"

#include <doctest/doctest.h>

using namespace mhar_test;

TEST_CASE("device: a workspace over an array of a call is refused and nothing is written")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{291};
  const device_stream stream;
  const auto run = [&](const auto& problem, void* workspace, std::size_t bytes) {
    return run_in_stream(stream, workspace, bytes, [&](const mhar::device::context& context) {
      return call_verb(problem, context);
    });
  };
  refuses_workspace_over_arrays<float, device_fuzz_memory>(random, run);
  refuses_workspace_over_arrays<mhar::bfloat16, device_fuzz_memory>(random, run);
}

TEST_CASE("device: a workspace off a 256-byte boundary is refused")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{292};
  const device_stream stream;
  const device_buffer<unsigned char> workspace{std::int64_t{1} << 16};
  call_case<float> data{every_option<float>(), random};
  device_memory memory;
  const auto backward = data.backward(memory);
  const mhar::status outcome = mhar::device::route_gradient(
      backward.problem,
      mhar::device::context{stream.get(), workspace.data() + 4, std::size_t{1} << 15});
  CHECK(outcome.code == mhar::code::bad_alignment);
  CHECK(std::string{outcome.argument} == "workspace");
  stream.wait();
  CHECK(workspace.untouched());
}
