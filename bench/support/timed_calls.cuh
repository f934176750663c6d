// SPDX-License-Identifier: Apache-2.0
//! One routing call timed at every shape of call_shapes: the same loop whatever the direction.
#pragma once

#include "support/device_limits.cuh"
#include "support/event_timer.cuh"
#include "support/report.hpp"
#include "support/shapes.hpp"

#include <mhar/device/context.cuh>

namespace mhar_bench {

//! Call is made from a shape, runs in a context, and knows the bytes it must move.
template <class Call>
void time_call(benchmark::State& state, const call_shape& shape)
{
  if (!has_gpu(state)) { return; }
  const Call call{shape};
  const bench_stream stream;
  for (auto step : state) {
    const event_timer timer{state, stream.get()};
    call.run(mhar::device::context{stream.get()});
  }
  report(state, call.bytes(), call.bytes(), device_limits());
}

//! Registers "<work>/N..-d..-H..-P.." for every shape.
template <class Call>
bool register_calls(const char* work)
{
  for (const call_shape& shape : call_shapes) {
    benchmark::RegisterBenchmark(name_of(work, shape).c_str(), time_call<Call>, shape)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}

}  // namespace mhar_bench
