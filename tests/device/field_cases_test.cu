// SPDX-License-Identifier: Apache-2.0
//! Cases that have broken other implementations, on the GPU (support/field_cases.hpp).
#include "device/device_route.cuh"
#include "device/device_route_gradient.cuh"
#include "device/stream.cuh"
#include "support/device_memory.cuh"
#include "support/field_cases.hpp"
#include "support/field_cases_memory.hpp"

using namespace mhar_test;
using mhar::bfloat16;
using mhar::float16;

namespace {

struct on_device
{
  template <class T>
  void forward(call_case<T>& data) const
  {
    device_memory memory;
    const auto forward = data.forward(memory);
    run(forward.problem, memory);
  }
  template <class T>
  void backward(call_case<T>& data) const
  {
    device_memory memory;
    const auto backward = data.backward(memory);
    run_on_device(backward.problem, [](const auto& problem, const mhar::device::context& context) {
      return mhar::device::route_gradient(problem, context);
    });
    memory.download();
  }
  template <class T>
  void update(call_case<T>& data, int row, tensor& delta, tensor* sum, tensor& copy) const
  {
    device_memory memory;
    const auto updated = data.update(row, delta, sum, copy, memory);
    run(updated.problem, memory);
  }

private:
  template <class Problem>
  static void run(const Problem& problem, device_memory& memory)
  {
    run_on_device(problem, [](const auto& call, const mhar::device::context& context) {
      return mhar::device::route(call, context);
    });
    memory.download();
  }
};

}  // namespace

#define MHAR_TEST_ON on_device
#define MHAR_TEST_SKIP \
  if (skip_without_gpu()) { return; }
#define MHAR_TEST_WHERE "device: "
#include "support/field_cases_list.hpp"
