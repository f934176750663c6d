// SPDX-License-Identifier: Apache-2.0
//! The CUDA backend under the fuzzer of calls: call_fuzz_cuda [seconds [seed]]. Arrays of spoilt calls live in managed memory, which
//! the host and the device reach at one address.
#include "device/device_route.cuh"
#include "device/device_route_gradient.cuh"
#include "device/stream.cuh"
#include "fuzz/call_fuzz.hpp"
#include "fuzz/seeded.hpp"
#include "support/device_memory.cuh"

using namespace mhar_test;

namespace {

class device_fuzz_backend
{
public:
  static constexpr bool merges = false;
  static constexpr bool infinite_logits_are_nan = false;
  //! What validation accepts is served.
  static bool may_refuse(const mhar::status&) { return false; }

  class memory
  {
  public:
    explicit memory(std::size_t bytes)
    {
      check_cuda(cudaMallocManaged(&bytes_, bytes + 1, cudaMemAttachGlobal));
    }
    memory(const memory&) = delete;
    memory& operator=(const memory&) = delete;
    memory(memory&& other) noexcept : bytes_{std::exchange(other.bytes_, nullptr)} {}
    memory& operator=(memory&&) = delete;
    ~memory() { cudaFree(bytes_); }
    [[nodiscard]] unsigned char* data() const noexcept { return bytes_; }

  private:
    unsigned char* bytes_ = nullptr;
  };

  template <class T>
  void forward(call_case<T>& data)
  {
    device_memory arrays;
    const auto forward = data.forward(arrays);
    serve(forward.problem, *this);
    arrays.download();
  }
  template <class T>
  void backward(call_case<T>& data)
  {
    device_memory arrays;
    const auto backward = data.backward(arrays);
    serve(backward.problem, *this);
    arrays.download();
  }
  template <class Problem>
  [[nodiscard]] std::size_t workspace(const Problem& problem)
  {
    return workspace_bytes(problem, mhar::device::context{stream_.get()});
  }
  template <class Problem>
  [[nodiscard]] mhar::status run(const Problem& problem, std::size_t bytes)
  {
    const device_buffer<unsigned char> scratch{static_cast<std::int64_t>(bytes)};
    const mhar::device::context context{stream_.get(), bytes == 0 ? nullptr : scratch.data(),
                                        bytes};
    const mhar::status outcome = call_verb(problem, context);
    stream_.wait();
    check_cuda(cudaGetLastError());
    return outcome;
  }

private:
  device_stream stream_;
};

}  // namespace

int main(int argc, char** argv)
{
  if (skip_without_gpu()) { return 0; }
  device_fuzz_backend backend;
  return fuzz_for(argc, argv, [&](entropy& choices) { fuzz_one(choices, backend); });
}
