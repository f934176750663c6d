// SPDX-License-Identifier: Apache-2.0
//! Cases that have broken other implementations, on the CPU (support/field_cases.hpp).
#include "support/field_cases.hpp"
#include "cpu/cpu_runs.hpp"
#include "support/field_cases_memory.hpp"

using namespace mhar_test;
using mhar::bfloat16;
using mhar::float16;

namespace {

struct on_cpu
{
  template <class T>
  void forward(call_case<T>& data) const
  {
    route_on_cpu(data.forward(host_memory{}).problem);
  }
  template <class T>
  void backward(call_case<T>& data) const
  {
    route_gradient_on_cpu(data.backward(host_memory{}).problem);
  }
  template <class T>
  void update(call_case<T>& data, int row, tensor& delta, tensor* sum, tensor& copy) const
  {
    const auto updated = data.update(row, delta, sum, copy, host_memory{});
    run_on_cpu(updated.problem, [](const auto& problem, const mhar::cpu::context& context) {
      return mhar::cpu::route(problem, context);
    });
  }
};

}  // namespace

#define MHAR_TEST_ON on_cpu
#define MHAR_TEST_SKIP
#define MHAR_TEST_WHERE "cpu: "
#include "support/field_cases_list.hpp"
