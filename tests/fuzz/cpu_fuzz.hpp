// SPDX-License-Identifier: Apache-2.0
//! What fuzzers of the CPU backend share: memory, and a program around the body. With MHAR_LIBFUZZER (clang++ -fsanitize=fuzzer) it
//! is a libFuzzer target; without, `[seconds [seed]]` draws inputs from a fresh seed, which it prints.
#pragma once

#include "fuzz/seeded.hpp"

#include <mhar/cpu/aligned_memory.hpp>

namespace mhar_test {

class cpu_fuzz_memory
{
public:
  explicit cpu_fuzz_memory(std::size_t bytes) : bytes_{bytes + 1} {}
  [[nodiscard]] unsigned char* data() const noexcept
  {
    return static_cast<unsigned char*>(bytes_.data());
  }

private:
  mhar::cpu::aligned_memory bytes_;
};

}  // namespace mhar_test

//! Defines the program; the body reads an entropy that is called `choices`.
#if defined(MHAR_LIBFUZZER)
#  define MHAR_CPU_FUZZER(...)                                                        \
    extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) \
    {                                                                                 \
      mhar_test::entropy choices{data, size};                                         \
      __VA_ARGS__;                                                                    \
      return 0;                                                                       \
    }
#else
#  define MHAR_CPU_FUZZER(...)                                                                  \
    int main(int argc, char** argv)                                                             \
    {                                                                                           \
      return mhar_test::fuzz_for(argc, argv, [](mhar_test::entropy& choices) { __VA_ARGS__; }); \
    }
#endif
