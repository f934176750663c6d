// SPDX-License-Identifier: Apache-2.0
//! Whole model passes on the CPU: a sweep against the same calls one at a time, from sizes where everything is in the first cache
//! to sizes where nothing is.
#include "support/cpu_chain.hpp"

#include <benchmark/benchmark.h>

namespace {

using mhar_bench::chain_shape;
using mhar_bench::cpu_chain;

constexpr chain_shape shapes[] = {
    {"cpu/chain/S8-P16-d64", 8, 16, 64, 1},         {"cpu/chain/S25-P8-d64", 25, 8, 64, 4},
    {"cpu/chain/S73-P4-d128", 73, 4, 128, 8},       {"cpu/chain/S25-P256-d512", 25, 256, 512, 4},
    {"cpu/chain/S49-P128-d1024", 49, 128, 1024, 8}, {"cpu/chain/S73-P128-d1280", 73, 128, 1280, 8},
};

template <class T>
void register_chain(const std::string& type, const chain_shape& shape)
{
  using chain = cpu_chain<T>;
  const auto add = [&](const char* work, void (chain::*pass)()) {
    benchmark::RegisterBenchmark((shape.name + std::string{"/"} + type + "/" + work).c_str(),
                                 [shape, pass](benchmark::State& state) {
                                   mhar::cpu::thread_pool threads;
                                   chain data{shape, threads.get()};
                                   data.calls_forward();  // the backward of calls needs their lse
                                   for (auto step : state) { (data.*pass)(); }
                                 })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  };
  add("sweep/forward", &chain::sweep_forward_again);
  add("calls/forward", &chain::calls_forward);
  add("sweep/backward", &chain::sweep_backward_again);
  add("calls/backward", &chain::calls_backward);
}

const bool registered = [] {
  for (const chain_shape& shape : shapes) {
    register_chain<mhar::bfloat16>("bf16", shape);
    register_chain<float>("fp32", shape);
  }
  return true;
}();

}  // namespace
