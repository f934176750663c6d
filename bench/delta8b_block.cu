// SPDX-License-Identifier: Apache-2.0
//! delta8B/block, delta1B/block: 64 routing calls of a model in delta mode, the 8 calls of a block in
//! one pass over their rows: forward, forward again (activations are recomputed), backward with row
//! gradients added up in bfloat16.
#include "support/delta_blocks.cuh"
#include "support/device_limits.cuh"
#include "support/device_sweep.cuh"

namespace {

constexpr int num_blocks = 8;

//! A row is new to the first block that reads it; the recompute has its inverse rms.
void forward(const mhar_bench::delta_blocks& work, const mhar::device::context& where)
{
  for (int block = 0; block < num_blocks; ++block) {
    work.forward(where, block, block == 0 ? mhar_bench::delta_blocks::num_rows : 1);
  }
}

void backward(const mhar_bench::delta_blocks& work, const mhar::device::context& where)
{
  work.begin_backward(where);
  for (int block = num_blocks - 1; block >= 0; --block) {
    work.forward(where, block, 0);
    work.backward(where, block);
  }
  work.finish_backward(where);
}

void delta_block(benchmark::State& state, std::int64_t width)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  const mhar_bench::delta_blocks work{{8192, width, 8, 0}, num_blocks};
  const mhar_bench::bench_stream stream;
  const mhar::device::context where{stream.get(), nullptr, 0,
                                    mhar::device::dependent_launch::programmatic};
  const mhar_bench::device_graph graph{stream.get(), [&] {
                                         work.fold(where);
                                         forward(work, where);
                                         backward(work, where);
                                       }};
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get()};
    graph.launch(stream.get());
  }
  mhar_bench::report(state, work.bytes(2), work.bytes(2), mhar_bench::device_limits());
}

BENCHMARK_CAPTURE(delta_block, of_8b, 4096)
    ->Name("delta8B/block")
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(delta_block, of_1b, 1280)
    ->Name("delta1B/block")
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
