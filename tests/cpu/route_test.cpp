// SPDX-License-Identifier: Apache-2.0
//! route and route_gradient on the CPU against the reference.
#include "cpu/cpu_context.hpp"
#include "support/call_case.hpp"

#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>

#include <doctest/doctest.h>

using namespace mhar_test;

namespace {

template <class T>
void check_call(const call_options<T>& options, random_inputs& random)
{
  call_case<T> data{options, random};
  const auto forward = data.forward(host_memory{});
  run_on_cpu(forward.problem, [](const auto& problem, const mhar::cpu::context& context) {
    return mhar::cpu::route(problem, context);
  });
  CHECK_PASSES(data.check_forward());
  const auto backward = data.backward(host_memory{});
  run_on_cpu(backward.problem, [](const auto& problem, const mhar::cpu::context& context) {
    return mhar::cpu::route_gradient(problem, context);
  });
  CHECK_PASSES(data.check_backward());
}

template <class T>
void check_random_calls(std::uint64_t stream)
{
  random_inputs random{stream};
  for (int i = 0; i < 300; ++i) { check_call<T>(random_options<T>(random), random); }
}

}  // namespace

TEST_CASE("cpu: random calls with any options equal the reference")
{
  check_random_calls<float>(201);
  check_random_calls<double>(202);
  check_random_calls<mhar::bfloat16>(203);
  check_random_calls<mhar::float16>(204);
}
