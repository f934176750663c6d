// SPDX-License-Identifier: Apache-2.0
//! The seed of a test run: fresh every time, printed when first used, and set by MHAR_TEST_SEED to repeat a run.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace mhar_test {

inline std::uint64_t run_seed() {
  static std::uint64_t const seed = [] {
    char const* const given = std::getenv("MHAR_TEST_SEED");
    std::uint64_t const value = given != nullptr ? std::stoull(given) : std::random_device{}();
    std::cout << "random inputs: MHAR_TEST_SEED=" << value << '\n';
    return value;
  }();
  return seed;
}

}  // namespace mhar_test
