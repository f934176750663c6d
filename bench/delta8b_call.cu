// SPDX-License-Identifier: Apache-2.0
//! delta8B/call: the 64 routing calls of an 8B model in delta mode, one call at a time: forward,
//! forward again (activations are recomputed), backward with row gradients added up in bfloat16.
#include "support/delta_calls.cuh"
#include "support/device_limits.cuh"

namespace {

constexpr int num_calls = 64;

void delta8b_call(benchmark::State& state)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  const mhar_bench::delta_calls calls{{8192, 4096, 8, 0}};
  const mhar_bench::bench_stream stream;
  const mhar::device::context context{stream.get()};
  const mhar_bench::device_graph graph{stream.get(), [&] {
                                         for (int call = 0; call < num_calls; ++call) {
                                           calls.forward(context, false);
                                         }
                                         for (int call = 0; call < num_calls; ++call) {
                                           calls.forward(context, true);
                                           calls.backward(context);
                                         }
                                       }};
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get()};
    graph.launch(stream.get());
  }
  const double bytes = num_calls * calls.bytes(2);
  mhar_bench::report(state, bytes, bytes, mhar_bench::device_limits());
}

BENCHMARK(delta8b_call)->Name("delta8B/call")->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
