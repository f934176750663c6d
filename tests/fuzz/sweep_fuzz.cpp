// SPDX-License-Identifier: Apache-2.0
//! Sweeps on the CPU backend under the fuzzer, built and run as fuzz/call_fuzz.cpp is.
#include "fuzz/sweep_fuzz.hpp"
#include "fuzz/cpu_fuzz.hpp"

#include <mhar/cpu/backend.hpp>

using namespace mhar_test;

namespace {

class cpu_sweeps
{
public:
  using memory = cpu_fuzz_memory;
  using sweep_verbs = mhar::cpu::backend;
  static constexpr std::int64_t arena_bytes = std::int64_t{1} << 21;
  //! Head widths that have kernels of their own.
  static constexpr std::array<int, 0> fast_head_widths{};
  static constexpr std::int64_t workspace_alignment = 1;
  //! Whether what is not finite stays with the pairs that have weight.
  static constexpr bool keeps_non_finite = true;

  static bool may_refuse(const mhar::status& outcome) { return refuses_chunks(outcome); }
  static void wait() {}
  static mhar::cpu::context context(void* workspace, std::size_t bytes)
  {
    return {{}, workspace, bytes};
  }
  template <class Problem>
  [[nodiscard]] std::size_t workspace(const Problem& problem)
  {
    return sweep_workspace<sweep_verbs>(problem);
  }
  template <class Problem>
  [[nodiscard]] mhar::status run(const Problem& problem, std::size_t bytes)
  {
    const mhar::cpu::aligned_memory workspace{bytes};
    return run_in(problem, workspace.data(), workspace.size());
  }
  template <class Problem>
  [[nodiscard]] mhar::status run_in(const Problem& problem, void* workspace, std::size_t bytes)
  {
    return sweep_verb<sweep_verbs>(problem, context(workspace, bytes));
  }
};

}  // namespace

MHAR_CPU_FUZZER(fuzz_one_sweep<cpu_sweeps>(choices))
