// SPDX-License-Identifier: Apache-2.0
//! Random inputs: a fresh seed in every run, printed when first used, and set by MHAR_TEST_SEED to repeat a run.
#pragma once

#include <mhar/types/element.hpp>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

namespace mhar_test {

//! The seed of this process.
inline std::uint64_t run_seed()
{
  static const std::uint64_t seed = [] {
    const char* const given = std::getenv("MHAR_TEST_SEED");
    const std::uint64_t value = given != nullptr ? std::stoull(given) : std::random_device{}();
    std::cout << "random inputs: MHAR_TEST_SEED=" << value << std::endl;
    return value;
  }();
  return seed;
}

//! How many calls or sweeps a random test makes: MHAR_TEST_CALLS asks for more or fewer than `usual`.
inline int number_of_calls(int usual)
{
  const char* const given = std::getenv("MHAR_TEST_CALLS");
  return given != nullptr ? std::stoi(given) : usual;
}

//! A stream of random numbers; streams with different numbers are independent, so that adding a draw to one test changes no
//! other.
class random_inputs
{
public:
  explicit random_inputs(std::uint64_t stream = 0)
  {
    std::seed_seq sequence{run_seed() & 0xffffffffu, run_seed() >> 32, stream & 0xffffffffu,
                           stream >> 32};
    engine_.seed(sequence);
  }

  //! A stream that depends on `seed` alone, not on the process.
  [[nodiscard]] static random_inputs seeded(std::uint64_t seed)
  {
    random_inputs random;
    random.engine_.seed(seed);
    return random;
  }

  //! Both ends are possible.
  std::int64_t integer(std::int64_t low, std::int64_t high)
  {
    return std::uniform_int_distribution<std::int64_t>{low, high}(engine_);
  }
  double uniform(double low = -1, double high = 1)
  {
    return std::uniform_real_distribution<double>{low, high}(engine_);
  }
  double normal(double scale = 1) { return scale * std::normal_distribution<double>{}(engine_); }

  template <class T>
  void fill(T* data, std::int64_t count, double scale = 1)
  {
    for (std::int64_t i = 0; i < count; ++i) { data[i] = mhar::round_to<T>(normal(scale)); }
  }
  template <class T>
  std::vector<T> vector(std::int64_t count, double scale = 1)
  {
    std::vector<T> values(static_cast<std::size_t>(count));
    fill(values.data(), count, scale);
    return values;
  }

private:
  std::mt19937_64 engine_;
};

}  // namespace mhar_test
