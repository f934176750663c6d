// SPDX-License-Identifier: Apache-2.0
//! Runs a fuzzed body on inputs that follow from a seed, for as long as one asks.
#pragma once

#include "fuzz/entropy.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>

namespace mhar_test {

//! The seed of the input that runs.
inline std::uint64_t& fuzz_input()
{
  static std::uint64_t seed = 0;
  return seed;
}

//! Arguments: seconds (default 5), the first seed, and `only` to run that one input.
template <class Body>
int fuzz_for(int argc, char** argv, const Body& body)
{
  using clock = std::chrono::steady_clock;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  const bool only = argc > 3;
  std::printf("fuzz: from seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  const auto start = clock::now();
  long long count = 0;
  do {
    fuzz_input() = seed;
    entropy choices{seed};
    try {
      body(choices);
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "fuzz: input %llu: %s\n", static_cast<unsigned long long>(seed),
                   failure.what());
      std::abort();
    }
    ++seed;
    ++count;
  } while (!only && std::chrono::duration<double>(clock::now() - start).count() < seconds);
  std::printf("fuzz: %lld inputs\n", count);
  return 0;
}

}  // namespace mhar_test
