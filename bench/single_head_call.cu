// SPDX-License-Identifier: Apache-2.0
//! H1-d.../call: the 8 routing calls of a block of a model with one head over 8 rows, forward and
//! backward, one call at a time.
#include "support/delta_calls.cuh"
#include "support/device_limits.cuh"

#include <string>

namespace {

void run(benchmark::State& state, std::int64_t width)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  constexpr int num_calls = 8;
  const mhar_bench::delta_calls calls{{8192, width, 1, 0}};
  const mhar_bench::bench_stream stream;
  const mhar::device::context context{stream.get()};
  const mhar_bench::device_graph graph{stream.get(), [&] {
                                         for (int c = 0; c < num_calls; ++c) {
                                           calls.forward(context, true);
                                         }
                                         for (int c = 0; c < num_calls; ++c) {
                                           calls.backward(context);
                                         }
                                       }};
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get()};
    graph.launch(stream.get());
  }
  const double bytes = num_calls * calls.bytes(1);
  mhar_bench::report(state, bytes, bytes, mhar_bench::device_limits());
}

const bool registered = [] {
  for (const int width : {7168, 4096, 1280}) {
    const std::string name = "H1-d" + std::to_string(width) + "/call";
    benchmark::RegisterBenchmark(name.c_str(), run, width)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
