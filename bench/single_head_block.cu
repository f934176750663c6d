// SPDX-License-Identifier: Apache-2.0
//! H1-d.../block: the 8 routing calls of a block of a model with one head over 8 rows, forward and
//! backward, the calls of the block in one pass over their rows.
#include "support/delta_blocks.cuh"
#include "support/device_limits.cuh"
#include "support/device_sweep.cuh"

#include <string>

namespace {

void run(benchmark::State& state, std::int64_t width)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  const mhar_bench::delta_blocks work{{8192, width, 1, 0}, 1};
  const mhar_bench::bench_stream stream;
  const mhar::device::context where{stream.get(), nullptr, 0,
                                    mhar::device::dependent_launch::programmatic};
  const mhar_bench::device_graph graph{stream.get(), [&] {
                                         work.fold(where);
                                         work.forward(where, 0, mhar_bench::delta_blocks::num_rows);
                                         work.begin_backward(where);
                                         work.backward(where, 0);
                                         work.finish_backward(where);
                                       }};
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get()};
    graph.launch(stream.get());
  }
  mhar_bench::report(state, work.bytes(1), work.bytes(1), mhar_bench::device_limits());
}

const bool registered = [] {
  for (const int width : {7168, 4096, 1280}) {
    const std::string name = "H1-d" + std::to_string(width) + "/block";
    benchmark::RegisterBenchmark(name.c_str(), run, width)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
