// SPDX-License-Identifier: Apache-2.0
//! One forward call at the sizes of serving, in a CUDA graph. Warm: a chain of calls over rows that stay in L2, time per call.
//! Cold: a graph of one call after L2 was filled with other memory.
#include "support/device_limits.cuh"
#include "support/forward_call.cuh"

namespace {

using mhar::device::dependent_launch;
using mhar_bench::cache;

constexpr int calls_per_graph = 64;
// Left to itself the tool repeats until times per call add up to what it asks for: 64 times as long.
constexpr int iterations = 300;

void decode(benchmark::State& state, const mhar_bench::call_shape& shape, cache l2,
            dependent_launch dependency)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  const mhar_bench::forward_call call{shape};
  const mhar_bench::bench_stream stream;
  const int repeats = l2 == cache::warm ? calls_per_graph : 1;
  const mhar_bench::device_graph graph{
      stream.get(), [&] {
        const mhar::device::context context{stream.get(), nullptr, 0, dependency};
        for (int i = 0; i < repeats; ++i) { call.run(context); }
      }};
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get(), l2, repeats};
    graph.launch(stream.get());
  }
  mhar_bench::report(state, call.bytes(), call.bytes(), mhar_bench::device_limits());
}

template <class T>
__global__ void empty_kernel(T)
{
}

//! What a graph takes for a kernel that does nothing.
void empty(benchmark::State& state)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  const mhar_bench::bench_stream stream;
  const mhar_bench::device_graph graph{stream.get(), [&] {
                                         for (int i = 0; i < calls_per_graph; ++i) {
                                           empty_kernel<<<1, 32, 0, stream.get()>>>(0);
                                         }
                                       }};
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get(), cache::warm, calls_per_graph};
    graph.launch(stream.get());
  }
}

const bool registered = [] {
  for (const mhar_bench::call_shape& shape : mhar_bench::decode_shapes) {
    const std::string name = mhar_bench::name_of("decode", shape);
    const auto add = [&](const std::string& suffix, cache l2, dependent_launch dependency) {
      benchmark::RegisterBenchmark((name + suffix).c_str(), decode, shape, l2, dependency)
          ->UseManualTime()
          ->Iterations(iterations)
          ->Unit(benchmark::kMicrosecond);
    };
    add("", cache::warm, dependent_launch::programmatic);
    add("/cold", cache::cold, dependent_launch::programmatic);
    add("/serial", cache::warm, dependent_launch::off);
  }
  benchmark::RegisterBenchmark("decode/empty", empty)
      ->UseManualTime()
      ->Iterations(iterations)
      ->Unit(benchmark::kMicrosecond);
  return true;
}();

}  // namespace
