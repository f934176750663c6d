// SPDX-License-Identifier: Apache-2.0
//! One test call through the CPU backend: forward, backward, and the comparison with the reference.
#pragma once

#include "cpu/cpu_context.hpp"
#include "support/call_case.hpp"

#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>

#include <doctest/doctest.h>

#include <vector>

namespace mhar_test {

template <class T>
void route_on_cpu(const mhar::route_problem<T>& problem, mhar::cpu::executor run = {},
                  std::int64_t workspace_offset = 0)
{
  run_on_cpu(
      problem,
      [](const auto& call, const mhar::cpu::context& context) {
        return mhar::cpu::route(call, context);
      },
      run, workspace_offset);
}
template <class T>
void route_gradient_on_cpu(const mhar::route_gradient_problem<T>& problem,
                           mhar::cpu::executor run = {}, std::int64_t workspace_offset = 0)
{
  run_on_cpu(problem, mhar::cpu::route_gradient<T>, run, workspace_offset);
}

template <class T>
void check_call(const call_options<T>& options, random_inputs& random, mhar::cpu::executor run = {})
{
  call_case<T> data{options, random};
  route_on_cpu(data.forward(host_memory{}).problem, run);
  CHECK_PASSES(data.check_forward());
  route_gradient_on_cpu(data.backward(host_memory{}).problem, run, random.integer(0, 63));
  CHECK_PASSES(data.check_backward());
}

//! The bytes of everything that a call wrote, guards included.
template <class T>
std::vector<unsigned char> written_bytes(call_case<T>& data)
{
  std::vector<unsigned char> all;
  const auto append = [&](const char*, tensor& array) {
    if (!array) { return; }
    array.for_each([&](auto... at) {
      const double value = array.get(at...);
      const auto* const first = reinterpret_cast<const unsigned char*>(&value);
      all.insert(all.end(), first, first + sizeof(value));
    });
  };
  data.results().for_each_forward(append);
  data.results().for_each_gradient(append);
  return all;
}

}  // namespace mhar_test
