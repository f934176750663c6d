// SPDX-License-Identifier: Apache-2.0
//! A non-blocking stream of one test, and a context with the workspace that a problem asks for.
#pragma once

#include "support/device.cuh"

#include <mhar/device/context.cuh>
#include <mhar/status.hpp>

namespace mhar_test {

class device_stream
{
public:
  device_stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  device_stream(const device_stream&) = delete;
  device_stream& operator=(const device_stream&) = delete;
  ~device_stream() { cudaStreamDestroy(stream_); }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  void wait() const { check_cuda(cudaStreamSynchronize(stream_)); }

private:
  cudaStream_t stream_ = nullptr;
};

//! Runs verb(problem, context) with the workspace it wants, and waits for it.
template <class Problem, class Verb>
void run_on_device(const Problem& problem, Verb verb,
                   mhar::device::dependent_launch dependency = mhar::device::dependent_launch::off)
{
  const device_stream stream;
  const std::size_t bytes = workspace_bytes(problem, mhar::device::context{stream.get()});
  const device_buffer<unsigned char> workspace{static_cast<std::int64_t>(bytes)};
  mhar::check(
      verb(problem, mhar::device::context{stream.get(), bytes == 0 ? nullptr : workspace.data(),
                                          bytes, dependency}));
  stream.wait();
  check_cuda(cudaGetLastError());
}

}  // namespace mhar_test
