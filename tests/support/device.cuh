// SPDX-License-Identifier: Apache-2.0
//! Device memory for tests: owned, guarded and poisoned like guarded.hpp, and the question whether there is a GPU at all.
#pragma once

#include "support/guarded.hpp"

#include <cuda_runtime_api.h>

#include <iostream>
#include <stdexcept>
#include <utility>
#include <vector>

namespace mhar_test {

//! Throws for a failed call of the CUDA runtime.
inline void check_cuda(cudaError_t error)
{
  if (error != cudaSuccess) { throw std::runtime_error(cudaGetErrorString(error)); }
}

//! True without a GPU, and then prints the phrase by which ctest reports the case as skipped.
inline bool skip_without_gpu()
{
  int count = 0;
  const bool none = cudaGetDeviceCount(&count) != cudaSuccess || count == 0;
  if (none) { std::cout << "mhar: skipped (no CUDA device)" << std::endl; }
  return none;
}

//! `count` elements on the current device that start `offset` elements past a 256-byte boundary.
template <class T>
class device_buffer
{
public:
  explicit device_buffer(std::int64_t count, std::int64_t offset = 0)
      : count_{count},
        // The guard in front is a multiple of 256 bytes, so that the offset alone decides the alignment.
        before_{static_cast<std::size_t>(256 * guard_elements + offset * std::int64_t{sizeof(T)})},
        bytes_{before_ + static_cast<std::size_t>(count + guard_elements) * sizeof(T)}
  {
    check_cuda(cudaMalloc(&memory_, bytes_));
    check_cuda(cudaMemset(memory_, poison, bytes_));
    check_cuda(cudaDeviceSynchronize());
  }
  explicit device_buffer(const std::vector<T>& values, std::int64_t offset = 0)
      : device_buffer{static_cast<std::int64_t>(values.size()), offset}
  {
    upload(values);
  }
  //! A copy of device memory should be visible where it happens.
  device_buffer(const device_buffer&) = delete;
  device_buffer& operator=(const device_buffer&) = delete;
  device_buffer(device_buffer&& other) noexcept
      : count_{other.count_},
        before_{other.before_},
        bytes_{other.bytes_},
        memory_{std::exchange(other.memory_, nullptr)}
  {
  }
  device_buffer& operator=(device_buffer&&) = delete;
  ~device_buffer() { cudaFree(memory_); }

  [[nodiscard]] T* data() const noexcept
  {
    return reinterpret_cast<T*>(static_cast<char*>(memory_) + before_);
  }
  [[nodiscard]] std::int64_t size() const noexcept { return count_; }

  void upload(const std::vector<T>& values)
  {
    check_cuda(
        cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] std::vector<T> download() const
  {
    std::vector<T> values(static_cast<std::size_t>(count_));
    check_cuda(
        cudaMemcpy(values.data(), data(), values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  //! Nothing was written before or after the elements.
  [[nodiscard]] bool guards_intact() const
  {
    const std::vector<unsigned char> all = everything();
    const std::size_t stop = before_ + static_cast<std::size_t>(count_) * sizeof(T);
    return all_poison(all.data(), before_) && all_poison(all.data() + stop, bytes_ - stop);
  }
  //! Nothing was written at all.
  [[nodiscard]] bool untouched() const { return all_poison(everything().data(), bytes_); }

private:
  [[nodiscard]] std::vector<unsigned char> everything() const
  {
    std::vector<unsigned char> all(bytes_);
    check_cuda(cudaMemcpy(all.data(), memory_, bytes_, cudaMemcpyDeviceToHost));
    return all;
  }

  std::int64_t count_;
  std::size_t before_;
  std::size_t bytes_;
  void* memory_ = nullptr;
};

}  // namespace mhar_test
