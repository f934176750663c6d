// SPDX-License-Identifier: Apache-2.0
//! Times what a stream does between construction and destruction, and hands the time to Google Benchmark (UseManualTime).
#pragma once

#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <stdexcept>

namespace mhar_bench {

//! Throws for a failed call of the CUDA runtime: a benchmark that goes on would measure nothing.
inline void check_cuda(cudaError_t error)
{
  if (error != cudaSuccess) { throw std::runtime_error(cudaGetErrorString(error)); }
}

//! State of the L2 cache when the work begins.
enum class cache
{
  warm,  //!< as the previous iteration left it
  cold   //!< filled with other memory
};

namespace detail {
//! Twice the L2, allocated once and never freed: it lives as long as the program.
class flush_buffer
{
public:
  flush_buffer()
  {
    int device = 0;
    int l2 = 0;
    check_cuda(cudaGetDevice(&device));
    check_cuda(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device));
    bytes_ = 2 * static_cast<std::size_t>(l2);
    check_cuda(cudaMalloc(&memory_, bytes_));
  }
  void flush(cudaStream_t stream) const { check_cuda(cudaMemsetAsync(memory_, 0, bytes_, stream)); }

private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};
}  // namespace detail

//! for (auto step : state) { event_timer timer{state, stream}; launch(stream); }
//!
//! `repeats` says how often the work is launched within one timer, for work that is short beside the cost of an event.
class event_timer
{
public:
  explicit event_timer(benchmark::State& state, cudaStream_t stream, cache l2 = cache::warm,
                       int repeats = 1)
      : state_{state}, stream_{stream}, repeats_{repeats}
  {
    if (l2 == cache::cold) {
      static const detail::flush_buffer other;
      other.flush(stream);
    }
    check_cuda(cudaEventCreate(&start_));
    check_cuda(cudaEventCreate(&stop_));
    check_cuda(cudaEventRecord(start_, stream_));
  }
  ~event_timer()
  {
    float milliseconds = 0;
    cudaEventRecord(stop_, stream_);
    const cudaError_t error = cudaEventSynchronize(stop_);
    cudaEventElapsedTime(&milliseconds, start_, stop_);
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
    // A destructor cannot throw; the entry is marked instead.
    if (error != cudaSuccess) { state_.SkipWithError(cudaGetErrorString(error)); }
    state_.SetIterationTime(static_cast<double>(milliseconds) * 1e-3 / repeats_);
  }
  //! One timer times one stretch of work.
  event_timer(const event_timer&) = delete;
  event_timer& operator=(const event_timer&) = delete;

private:
  benchmark::State& state_;
  cudaStream_t stream_;
  int repeats_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

}  // namespace mhar_bench
