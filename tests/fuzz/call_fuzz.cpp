// SPDX-License-Identifier: Apache-2.0
//! The CPU backend under the fuzzer of calls. With MHAR_LIBFUZZER (clang++ -fsanitize=fuzzer) it is a libFuzzer target; without,
//! a program:  call_fuzz [seconds [seed]]  draws inputs from a fresh seed, which it prints.
#include "fuzz/call_fuzz.hpp"
#include "fuzz/seeded.hpp"

#include <mhar/cpu/aligned_memory.hpp>
#include <mhar/cpu/merge.hpp>
#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>

using namespace mhar_test;

namespace {

class cpu_fuzz_backend
{
public:
  static constexpr bool merges = true;

  class memory
  {
  public:
    explicit memory(std::size_t bytes) : bytes_{bytes + 1} {}
    [[nodiscard]] unsigned char* data() const noexcept
    {
      return static_cast<unsigned char*>(bytes_.data());
    }

  private:
    mhar::cpu::aligned_memory bytes_;
  };

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
  template <class Problem>
  [[nodiscard]] std::size_t workspace(const Problem& problem)
  {
    return workspace_bytes(problem, mhar::cpu::context{});
  }
  template <class Problem>
  [[nodiscard]] mhar::status run(const Problem& problem, std::size_t workspace_bytes)
  {
    const mhar::cpu::aligned_memory workspace{workspace_bytes};
    return call_verb(problem, workspace.context());
  }
};

}  // namespace

#if defined(MHAR_LIBFUZZER)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
  cpu_fuzz_backend backend;
  entropy choices{data, size};
  fuzz_one(choices, backend);
  return 0;
}
#else
int main(int argc, char** argv)
{
  cpu_fuzz_backend backend;
  return fuzz_for(argc, argv, [&](entropy& choices) { fuzz_one(choices, backend); });
}
#endif
