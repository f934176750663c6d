// SPDX-License-Identifier: Apache-2.0
//! One forward call at the sizes of training.
#include "support/device_limits.cuh"
#include "support/forward_call.cuh"

namespace {

void call_forward(benchmark::State& state, const mhar_bench::call_shape& shape)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  const mhar_bench::forward_call call{shape};
  const mhar_bench::bench_stream stream;
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get()};
    call.run(mhar::device::context{stream.get()});
  }
  mhar_bench::report(state, call.bytes(), call.bytes(), mhar_bench::device_limits());
}

const bool registered = [] {
  for (const mhar_bench::call_shape& shape : mhar_bench::call_shapes) {
    benchmark::RegisterBenchmark(mhar_bench::name_of("call/forward", shape).c_str(), call_forward,
                                 shape)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
