// SPDX-License-Identifier: Apache-2.0
//! One backward call at the sizes of training: all gradients, given lse and mix, row gradients
//! stored in bfloat16.
#include "support/backward_call.cuh"
#include "support/device_limits.cuh"

namespace {

void call_backward(benchmark::State& state, const mhar_bench::call_shape& shape)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  const mhar_bench::backward_call call{shape};
  const mhar_bench::bench_stream stream;
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get()};
    call.run(mhar::device::context{stream.get()});
  }
  mhar_bench::report(state, call.bytes(), call.bytes(), mhar_bench::device_limits());
}

const bool registered = [] {
  for (const mhar_bench::call_shape& shape : mhar_bench::call_shapes) {
    benchmark::RegisterBenchmark(mhar_bench::name_of("call/backward", shape).c_str(), call_backward,
                                 shape)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
