// SPDX-License-Identifier: Apache-2.0
//! One routing call on the CPU against the roofline, and the reference on the same problem.

// Before anything else: g++ 12 warns about its own AVX-512 intrinsics where Eigen uses them.
#if defined(__GNUC__)
#  pragma GCC diagnostic ignored "-Wuninitialized"
#  pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "support/cpu_call.hpp"
#include "support/cpu_roofline.hpp"

#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>
#include <mhar/reference/route.hpp>

#include <benchmark/benchmark.h>

namespace {

using mhar_bench::call_shape;
using mhar_bench::cpu_call;

//! The GPU's calls with fewer positions, still far more than the caches hold.
constexpr call_shape shapes[] = {{9, 7168, 1, 1024},
                                 {9, 4096, 8, 1024},
                                 {37, 1280, 8, 1024},
                                 {5, 7168, 1, 1024},
                                 {25, 512, 4, 4096}};
//! The reference takes long.
constexpr std::int64_t reference_positions = 32;

mhar::cpu::thread_pool& pool()
{
  static mhar::cpu::thread_pool threads;
  return threads;
}

template <class Problem, class Verb>
void run(benchmark::State& state, const Problem& problem, Verb verb)
{
  const mhar::cpu::executor executor = pool().get();
  std::vector<unsigned char> workspace(workspace_bytes(problem, mhar::cpu::context{}));
  const mhar::cpu::context context{executor, workspace.data(), workspace.size()};
  for (auto step : state) { mhar::check(verb(problem, context)); }
}

template <class T>
void forward(benchmark::State& state, const call_shape& shape)
{
  cpu_call<T> data{shape};
  run(state, data.forward(), [](const auto& problem, const mhar::cpu::context& context) {
    return mhar::cpu::route(problem, context);
  });
  const auto& machine = mhar_bench::roofline();
  mhar_bench::report(state, data.forward_bytes(), data.forward_bytes(),
                     data.forward_multiply_adds(), machine.multiply_adds_per_second,
                     machine.memory);
}

template <class T>
void backward(benchmark::State& state, const call_shape& shape)
{
  cpu_call<T> data{shape};
  std::vector<unsigned char> workspace(workspace_bytes(data.forward(), mhar::cpu::context{}));
  mhar::check(mhar::cpu::route(
      data.forward(), mhar::cpu::context{pool().get(), workspace.data(), workspace.size()}));
  run(state, data.backward(), mhar::cpu::route_gradient<T>);
  const auto& machine = mhar_bench::roofline();
  mhar_bench::report(state, data.backward_bytes(), data.backward_bytes(),
                     data.backward_multiply_adds(), machine.multiply_adds_per_second,
                     machine.memory);
}

template <class T>
void reference_forward(benchmark::State& state, const call_shape& shape)
{
  cpu_call<T> data{shape};
  const auto problem = data.forward();
  for (auto step : state) { mhar::reference::route(problem); }
}

template <class T>
void reference_backward(benchmark::State& state, const call_shape& shape)
{
  cpu_call<T> data{shape};
  mhar::reference::route(data.forward());
  const auto problem = data.backward();
  for (auto step : state) { mhar::reference::route_gradient(problem); }
}

template <class T>
void register_type(const std::string& type)
{
  for (const call_shape& shape : shapes) {
    const auto add = [&](const std::string& work, const call_shape& size, auto function) {
      benchmark::RegisterBenchmark(mhar_bench::name_of(work + "/" + type, size).c_str(), function,
                                   size)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    };
    add("cpu/call/forward", shape, forward<T>);
    add("cpu/call/backward", shape, backward<T>);
    call_shape few = shape;
    few.num_positions = reference_positions;
    add("cpu/reference/forward", few, reference_forward<T>);
    add("cpu/reference/backward", few, reference_backward<T>);
    add("cpu/call/forward", few, forward<T>);
    add("cpu/call/backward", few, backward<T>);
  }
}

const bool registered = [] {
  register_type<mhar::bfloat16>("bf16");
  register_type<mhar::float16>("fp16");
  register_type<float>("fp32");
  return true;
}();

}  // namespace
