// SPDX-License-Identifier: Apache-2.0
//! The CUDA backend under the fuzzer of calls: mhar_fuzz_calls_cuda [seconds [seed]].
#include "device/device_route.cuh"
#include "device/device_route_gradient.cuh"
#include "fuzz/call_fuzz.hpp"
#include "fuzz/device_fuzz.cuh"
#include "fuzz/seeded.hpp"
#include "support/device_memory.cuh"

#include <mhar/device/merge.cuh>

using namespace mhar_test;

namespace {

class device_fuzz_backend
{
public:
  using memory = device_fuzz_memory;
  static constexpr bool infinite_logits_are_nan = false;
  static constexpr std::int64_t workspace_alignment = 256;
  //! What validation accepts is served.
  static bool may_refuse(const mhar::status&) { return false; }

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
  template <class T>
  [[nodiscard]] comparison merge(merge_case<T>& data)
  {
    device_memory arrays;
    return data.check(arrays, [&](const auto& problem) {
      serve(problem, *this);
      arrays.download();
    });
  }
  template <class Problem>
  [[nodiscard]] std::size_t workspace(const Problem& problem)
  {
    return workspace_bytes(problem, mhar::device::context{stream_.get()});
  }
  template <class Problem>
  [[nodiscard]] mhar::status run(const Problem& problem, std::size_t bytes)
  {
    return run_with_scratch(*this, problem, bytes);
  }
  template <class Problem>
  [[nodiscard]] mhar::status run_in(const Problem& problem, void* workspace, std::size_t bytes)
  {
    return run_in_stream(stream_, workspace, bytes, [&](const mhar::device::context& context) {
      return call_verb(problem, context);
    });
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
