// SPDX-License-Identifier: Apache-2.0
//! The CPU backend under the fuzzer of calls.
#include "fuzz/call_fuzz.hpp"
#include "fuzz/cpu_fuzz.hpp"

#include <mhar/cpu/merge.hpp>
#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>

using namespace mhar_test;

namespace {

class cpu_fuzz_backend
{
public:
  using memory = cpu_fuzz_memory;
  static constexpr bool infinite_logits_are_nan = true;
  static constexpr std::int64_t workspace_alignment = 1;
  //! What validation accepts is served.
  static bool may_refuse(const mhar::status&) { return false; }

  template <class T>
  void forward(call_case<T>& data)
  {
    serve(data.forward(host_memory{}).problem, *this);
  }
  template <class T>
  void backward(call_case<T>& data)
  {
    serve(data.backward(host_memory{}).problem, *this);
  }
  template <class T>
  [[nodiscard]] comparison merge(merge_case<T>& data)
  {
    return data.check(host_memory{}, [&](const auto& problem) { serve(problem, *this); });
  }
  template <class Problem>
  [[nodiscard]] std::size_t workspace(const Problem& problem)
  {
    return workspace_bytes(problem, mhar::cpu::context{});
  }
  template <class Problem>
  [[nodiscard]] mhar::status run(const Problem& problem, std::size_t workspace_bytes)
  {
    const mhar::cpu::aligned_memory workspace{workspace_bytes};
    return run_in(problem, workspace.data(), workspace.size());
  }
  template <class Problem>
  [[nodiscard]] mhar::status run_in(const Problem& problem, void* workspace, std::size_t bytes)
  {
    return call_verb(problem, mhar::cpu::context{{}, workspace, bytes});
  }
};

void fuzz_calls(entropy& choices)
{
  cpu_fuzz_backend backend;
  fuzz_one(choices, backend);
}

}  // namespace

MHAR_CPU_FUZZER(fuzz_calls(choices))
