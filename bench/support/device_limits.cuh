// SPDX-License-Identifier: Apache-2.0
//! What the GPU at hand can do: the bandwidth of a copy within its memory, and the size of its L2.
#pragma once

#include "support/event_timer.cuh"
#include "support/report.hpp"

#include <algorithm>
#include <vector>

namespace mhar_bench {

//! Whether there is a GPU; without one the entry is marked as skipped.
inline bool has_gpu(benchmark::State& state)
{
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!found) { state.SkipWithError("no CUDA device"); }
  return found;
}

//! Median of 21 copies of 1 GiB from device to device; bytes read plus written.
inline double measure_device_copy()
{
  constexpr std::size_t bytes = std::size_t{1} << 30;
  void* from = nullptr;
  void* to = nullptr;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  check_cuda(cudaMalloc(&from, bytes));
  check_cuda(cudaMalloc(&to, bytes));
  check_cuda(cudaMemset(from, 0, bytes));
  check_cuda(cudaEventCreate(&start));
  check_cuda(cudaEventCreate(&stop));
  std::vector<float> milliseconds(21);
  for (float& time : milliseconds) {
    check_cuda(cudaEventRecord(start));
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice));
    check_cuda(cudaEventRecord(stop));
    check_cuda(cudaEventSynchronize(stop));
    check_cuda(cudaEventElapsedTime(&time, start, stop));
  }
  check_cuda(cudaEventDestroy(start));
  check_cuda(cudaEventDestroy(stop));
  check_cuda(cudaFree(from));
  check_cuda(cudaFree(to));
  std::sort(milliseconds.begin(), milliseconds.end());
  return 2.0 * static_cast<double>(bytes) /
         (static_cast<double>(milliseconds[milliseconds.size() / 2]) * 1e-3);
}

//! Measured on the first call, on the current device.
inline const limits& device_limits()
{
  static const limits measured = [] {
    int device = 0;
    int l2 = 0;
    check_cuda(cudaGetDevice(&device));
    check_cuda(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device));
    return limits{measure_device_copy(), l2};
  }();
  return measured;
}

}  // namespace mhar_bench
