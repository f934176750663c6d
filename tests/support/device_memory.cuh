// SPDX-License-Identifier: Apache-2.0
//! A call's arrays on the device: uploaded with their guards when a problem asks for them, and
//! brought back whole, so that a CUDA test compares with the code of a CPU test.
#pragma once

#include "support/device.cuh"
#include "support/tensor.hpp"

#include <cstdint>
#include <map>
#include <utility>

namespace mhar_test {

//!     device_memory memory;
//!     auto forward = data.forward(memory);
//!     mhar::check(mhar::device::route(forward.problem, context));
//!     memory.download();
//!     CHECK_PASSES(data.check_forward());
class device_memory
{
public:
  device_memory() = default;
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  ~device_memory()
  {
    for (const auto& [array, copy] : copies_) { cudaFree(copy.allocation); }
  }

  //! Where the array's elements are on the device, as far past a 64-byte boundary as on the host;
  //! null for an absent one.
  void* operator()(tensor& array)
  {
    if (!array) { return nullptr; }
    const auto elements =
        static_cast<std::size_t>(static_cast<unsigned char*>(array.data()) - array.storage());
    const auto found = copies_.find(&array);
    if (found != copies_.end()) { return found->second.bytes + elements; }

    device_copy made;
    check_cuda(cudaMalloc(&made.allocation, array.storage_bytes() + 64));
    made.bytes = static_cast<unsigned char*>(made.allocation) +
                 reinterpret_cast<std::uintptr_t>(array.storage()) % 64;
    check_cuda(
        cudaMemcpy(made.bytes, array.storage(), array.storage_bytes(), cudaMemcpyHostToDevice));
    copies_.emplace(&array, made);
    return made.bytes + elements;
  }

  //! Waits for the device and copies every array back, guards included.
  void download()
  {
    check_cuda(cudaDeviceSynchronize());
    for (const auto& [array, copy] : copies_) {
      check_cuda(
          cudaMemcpy(array->storage(), copy.bytes, array->storage_bytes(), cudaMemcpyDeviceToHost));
    }
  }

private:
  struct device_copy
  {
    void* allocation = nullptr;
    unsigned char* bytes = nullptr;
  };
  std::map<tensor*, device_copy> copies_;
};

}  // namespace mhar_test
