// SPDX-License-Identifier: Apache-2.0
//! The CUDA backend's memory and contexts.
#pragma once

#include "backend_memory.hpp"
#include "device/device_sweep.cuh"
#include "support/device.cuh"

#include <mhar/device/backend.cuh>

namespace mhar_test {

template <>
struct backend_access<mhar::device::backend>
{
  //! One stream for everything, so that verbs follow each other.
  static cudaStream_t stream()
  {
    static const cudaStream_t created = [] {
      cudaStream_t fresh = nullptr;
      check_cuda(cudaStreamCreateWithFlags(&fresh, cudaStreamNonBlocking));
      return fresh;
    }();
    return created;
  }
  static mhar::device::context context() { return mhar::device::context{stream()}; }

  static void* allocate(std::size_t bytes)
  {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, bytes == 0 ? 256 : bytes));
    return memory;
  }
  static void release(void* data) { cudaFree(data); }
  static void upload(void* to, const void* from, std::size_t bytes)
  {
    if (bytes == 0) { return; }
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream()));
    check_cuda(cudaStreamSynchronize(stream()));
  }
  //! Waits for everything launched before.
  static void download(void* to, const void* from, std::size_t bytes)
  {
    check_cuda(cudaStreamSynchronize(stream()));
    if (bytes == 0) { return; }
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }
};

}  // namespace mhar_test
