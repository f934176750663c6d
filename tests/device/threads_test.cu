// SPDX-License-Identifier: Apache-2.0
//! Several host threads on one GPU, and several GPUs: the same inputs, a stream, outputs and a workspace for each.
#include "device/device_route.cuh"
#include "device/device_route_gradient.cuh"
#include "device/stream.cuh"
#include "support/shared_calls.hpp"

#include <doctest/doctest.h>

#include <thread>

using namespace mhar_test;

namespace {

//! Runs calls in a stream of its own.
class device_runner
{
public:
  template <class Problem>
  void route(const Problem& problem)
  {
    run(problem, [](const auto& call, const mhar::device::context& context) {
      return mhar::device::route(call, context);
    });
  }
  template <class Problem>
  void route_gradient(const Problem& problem)
  {
    run(problem, [](const auto& call, const mhar::device::context& context) {
      return mhar::device::route_gradient(call, context);
    });
  }

private:
  template <class Problem, class Verb>
  void run(const Problem& problem, const Verb& verb)
  {
    const std::size_t bytes = workspace_bytes(problem, mhar::device::context{stream_.get()});
    const device_buffer<unsigned char> workspace{static_cast<std::int64_t>(bytes)};
    mhar::check(verb(problem, mhar::device::context{stream_.get(), workspace.data(), bytes}));
    stream_.wait();
  }

  device_stream stream_;
};

// A wide one wants more shared memory per block than is had without asking, and narrow ones must not take it back.
const std::vector<mhar::shape> shapes = {
    {64, 64, 1, 0}, {3, 16384, 4, 0}, {300, 1280, 8, 0}, {1, 513, 9, 0}};

}  // namespace

TEST_CASE("device: two threads in two streams on the same inputs get the bits of one")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{281};
  const auto prepare = [] { return device_runner{}; };
  CHECK(different_results<float, device_buffer>(shapes, 10, random, prepare) == 0);
  CHECK(different_results<mhar::bfloat16, device_buffer>(shapes, 10, random, prepare) == 0);
}

TEST_CASE("device: a second GPU gives the bits of the first")
{
  if (skip_without_gpu()) { return; }
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count));
  if (count < 2) {
    std::cout << "mhar: skipped (fewer than two CUDA devices)" << std::endl;
    return;
  }
  using call_type = shared_call<mhar::bfloat16, device_buffer>;
  std::vector<std::vector<unsigned char>> first;
  for (int device = 0; device < 2; ++device) {
    check_cuda(cudaSetDevice(device));
    random_inputs random{282};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const call_type call{shapes[i], 5, random};
      outputs_of_call<mhar::bfloat16, device_buffer> outputs{call};
      device_runner runner;
      const std::vector<unsigned char> bytes =
          outputs.run([&](const auto& problem) { runner.route(problem); },
                      [&](const auto& problem) { runner.route_gradient(problem); });
      if (device == 0) { first.push_back(bytes); }
      else {
        CHECK(bytes == first[i]);
      }
    }
  }
  check_cuda(cudaSetDevice(0));
}
