// SPDX-License-Identifier: Apache-2.0
//! Inputs for benchmarks: normal numbers, of which a short list is drawn and repeated, since drawing them all would take longer
//! than what is measured.
#pragma once

#include <mhar/types/element.hpp>

#include <cstddef>
#include <random>
#include <vector>

namespace mhar_bench {

template <class T>
void fill_normal(std::vector<T>& values, float mean = 0, float deviation = 1)
{
  constexpr std::size_t period = 65521;  // a prime: no two rows are equal
  std::mt19937 engine{1};
  std::normal_distribution<float> normal{mean, deviation};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = i < period ? mhar::round_to<T>(normal(engine)) : values[i - period];
  }
}

}  // namespace mhar_bench
