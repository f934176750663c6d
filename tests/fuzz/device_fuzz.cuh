// SPDX-License-Identifier: Apache-2.0
//! What fuzzers of the CUDA backend share: managed memory, which the host and the device reach at one address, and a stream.
#pragma once

#include "device/stream.cuh"

#include <utility>

namespace mhar_test {

class device_fuzz_memory
{
public:
  explicit device_fuzz_memory(std::size_t bytes)
  {
    check_cuda(cudaMallocManaged(&bytes_, bytes + 1, cudaMemAttachGlobal));
  }
  device_fuzz_memory(const device_fuzz_memory&) = delete;
  device_fuzz_memory& operator=(const device_fuzz_memory&) = delete;
  device_fuzz_memory(device_fuzz_memory&& other) noexcept
      : bytes_{std::exchange(other.bytes_, nullptr)}
  {
  }
  device_fuzz_memory& operator=(device_fuzz_memory&&) = delete;
  ~device_fuzz_memory() { cudaFree(bytes_); }
  [[nodiscard]] unsigned char* data() const noexcept { return bytes_; }

private:
  unsigned char* bytes_ = nullptr;
};

//! Runs verb(context) in the stream, and waits for it.
template <class Verb>
mhar::status run_in_stream(const device_stream& stream, void* workspace, std::size_t bytes,
                           const Verb& verb)
{
  const mhar::status outcome = verb(mhar::device::context{stream.get(), workspace, bytes});
  stream.wait();
  check_cuda(cudaGetLastError());
  return outcome;
}

//! backend.run_in with a workspace of `bytes` bytes that nothing else touches.
template <class Backend, class Problem>
mhar::status run_with_scratch(Backend& backend, const Problem& problem, std::size_t bytes)
{
  const device_buffer<unsigned char> scratch{static_cast<std::int64_t>(bytes)};
  return backend.run_in(problem, bytes == 0 ? nullptr : scratch.data(), bytes);
}

}  // namespace mhar_test
