// SPDX-License-Identifier: Apache-2.0
//! The copy that every other entry is compared with.
#include "support/device_limits.cuh"

namespace {

void copy(benchmark::State& state)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  constexpr std::size_t bytes = std::size_t{1} << 30;
  void* from = nullptr;
  void* to = nullptr;
  cudaStream_t stream = nullptr;
  mhar_bench::check_cuda(cudaMalloc(&from, bytes));
  mhar_bench::check_cuda(cudaMalloc(&to, bytes));
  mhar_bench::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  mhar_bench::check_cuda(cudaMemsetAsync(from, 0, bytes, stream));
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream};
    mhar_bench::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
  }
  constexpr double moved = 2.0 * bytes;
  mhar_bench::report(state, moved, moved, mhar_bench::device_limits());
  state.counters["copy_bytes_per_second"] = mhar_bench::device_limits().copy_bytes_per_second;
  mhar_bench::check_cuda(cudaStreamDestroy(stream));
  mhar_bench::check_cuda(cudaFree(from));
  mhar_bench::check_cuda(cudaFree(to));
}

}  // namespace

BENCHMARK(copy)->UseManualTime()->Unit(benchmark::kMicrosecond);
