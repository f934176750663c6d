// SPDX-License-Identifier: Apache-2.0
//! Device memory of a benchmark, filled with random numbers: zeros would be faster than real data.
#pragma once

#include "support/event_timer.cuh"

#include <mhar/types/element.hpp>

#include <cstdint>

namespace mhar_bench {

namespace detail {
//! Uniform in [-2, 2), from a hash of the index.
template <class T>
__global__ void fill_kernel(T* data, std::int64_t count, std::uint32_t seed, float scale)
{
  const std::int64_t first = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  for (std::int64_t i = first; i < count; i += std::int64_t{gridDim.x} * blockDim.x) {
    auto x =
        static_cast<std::uint32_t>(i) * 2654435761u ^ seed ^ static_cast<std::uint32_t>(i >> 32);
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    x ^= x >> 16;
    data[i] = mhar::round_to<T>(scale * (static_cast<float>(x) * 0x1p-30f - 2.0f));
  }
}
}  // namespace detail

template <class T>
class device_array
{
public:
  explicit device_array(std::int64_t count, float scale = 1)
  {
    static std::uint32_t seed = 1;
    check_cuda(cudaMalloc(&data_, static_cast<std::size_t>(count) * sizeof(T)));
    detail::fill_kernel<<<1024, 256>>>(data_, count, seed++, scale);
    check_cuda(cudaDeviceSynchronize());
  }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  ~device_array() { cudaFree(data_); }

  [[nodiscard]] T* data() const noexcept { return data_; }

private:
  T* data_ = nullptr;
};

//! A stream that does not wait for the default one.
class bench_stream
{
public:
  bench_stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  bench_stream(const bench_stream&) = delete;
  bench_stream& operator=(const bench_stream&) = delete;
  ~bench_stream() { cudaStreamDestroy(stream_); }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

private:
  cudaStream_t stream_ = nullptr;
};

//! A captured sequence of launches.
class device_graph
{
public:
  template <class Work>
  device_graph(cudaStream_t stream, Work work)
  {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    work();
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&graph_, graph, 0));
    check_cuda(cudaGraphDestroy(graph));
    check_cuda(cudaGraphUpload(graph_, stream));
  }
  device_graph(const device_graph&) = delete;
  device_graph& operator=(const device_graph&) = delete;
  ~device_graph() { cudaGraphExecDestroy(graph_); }

  void launch(cudaStream_t stream) const { check_cuda(cudaGraphLaunch(graph_, stream)); }

private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace mhar_bench
