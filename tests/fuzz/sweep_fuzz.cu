// SPDX-License-Identifier: Apache-2.0
//! Sweeps on the CUDA backend under the fuzzer: mhar_fuzz_sweeps_cuda [seconds [seed]].
#include "device/device_sweep.cuh"
#include "fuzz/device_fuzz.cuh"
#include "fuzz/seeded.hpp"
#include "fuzz/sweep_fuzz.hpp"

#include <mhar/device/backend.cuh>

using namespace mhar_test;

namespace {

class device_sweeps
{
public:
  using memory = device_fuzz_memory;
  using sweep_verbs = mhar::device::backend;
  static constexpr std::int64_t arena_bytes = std::int64_t{1} << 23;
  //! Head widths that have kernels of their own.
  static constexpr std::array<int, 5> fast_head_widths{64, 128, 160, 256, 512};
  static constexpr std::int64_t workspace_alignment = 256;
  //! Whether what is not finite stays with the pairs that have weight.
  static constexpr bool keeps_non_finite = true;

  static bool may_refuse(const mhar::status& outcome) { return refuses_chunks(outcome); }
  void wait() const { stream_.wait(); }
  [[nodiscard]] mhar::device::context context(void* workspace, std::size_t bytes) const
  {
    return mhar::device::context{stream_.get(), workspace, bytes};
  }
  template <class Problem>
  [[nodiscard]] std::size_t workspace(const Problem& problem)
  {
    return sweep_workspace<sweep_verbs>(problem);
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
      return sweep_verb<sweep_verbs>(problem, context);
    });
  }

private:
  device_stream stream_;
};

}  // namespace

int main(int argc, char** argv)
{
  if (skip_without_gpu()) { return 0; }
  return fuzz_for(argc, argv, [](entropy& choices) { fuzz_one_sweep<device_sweeps>(choices); });
}
