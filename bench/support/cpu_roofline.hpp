// SPDX-License-Identifier: Apache-2.0
//! What this processor can do, measured with the flags that the library is compiled with: copy bandwidth and multiply-add rate.
#pragma once

#include "support/report.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

namespace mhar_bench {

namespace detail {

//! Runs body(thread) on every thread at once; seconds of the fastest of `repetitions` runs.
template <class Body>
double best_seconds(int num_threads, int repetitions, const Body& body)
{
  double best = 1e30;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int thread = 1; thread < num_threads; ++thread) { threads.emplace_back(body, thread); }
    body(0);
    for (auto& thread : threads) { thread.join(); }
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

#if defined(__AVX512F__)
constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX__)
constexpr std::size_t vector_bytes = 32;
#else
constexpr std::size_t vector_bytes = 16;
#endif

//! The widest vector that the flags allow.
using pack = float __attribute__((vector_size(vector_bytes)));
//! Chains that do not wait for each other: enough to hide the latency, few enough for 16 registers.
constexpr int num_chains = 10;
constexpr double lanes = double{vector_bytes} / sizeof(float);

inline void multiply_add(int rounds)
{
  pack values[num_chains] = {};
  pack factor = pack{} + 0.999f;
  pack addend = pack{} + 0.001f;
  benchmark::DoNotOptimize(factor);
  benchmark::DoNotOptimize(addend);
  for (int round = 0; round < rounds; ++round) {
    for (auto& value : values) { value = value * factor + addend; }
  }
  pack sum = {};
  for (const auto& value : values) { sum += value; }
  benchmark::DoNotOptimize(sum);
}

}  // namespace detail

//! Bytes of the largest cache that a core sees. (sysconf adds up the caches of a whole package.)
inline std::int64_t last_cache_bytes()
{
  std::int64_t bytes = 0;
  for (const auto& found : benchmark::CPUInfo::Get().caches) {
    bytes = std::max(bytes, std::int64_t{found.size});
  }
  return bytes;
}

//! Bytes read plus bytes written per second by a copy that no cache holds, each thread copying its own part.
inline double measure_copy(int num_threads)
{
  constexpr std::size_t bytes = std::size_t{256} << 20;
  std::vector<unsigned char> from(bytes, 1);
  std::vector<unsigned char> to(bytes, 2);
  const std::size_t part = bytes / static_cast<std::size_t>(num_threads);
  const double seconds = detail::best_seconds(num_threads, 7, [&](int thread) {
    const std::size_t start = part * static_cast<std::size_t>(thread);
    std::memcpy(to.data() + start, from.data() + start, part);
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  });
  return 2.0 * static_cast<double>(part) * num_threads / seconds;
}

//! Multiply-adds of floats per second.
inline double measure_multiply_add(int num_threads)
{
  constexpr int rounds = 20'000'000;
  const double seconds =
      detail::best_seconds(num_threads, 5, [](int) { detail::multiply_add(rounds); });
  return detail::lanes * detail::num_chains * rounds * num_threads / seconds;
}

//! Both, for one number of threads.
struct cpu_roofline
{
  limits memory;
  double multiply_adds_per_second = 0;
};

inline cpu_roofline measure_roofline(int num_threads)
{
  return {{measure_copy(num_threads), last_cache_bytes()}, measure_multiply_add(num_threads)};
}

//! With every thread of the machine; measured on the first call.
inline const cpu_roofline& roofline()
{
  static const cpu_roofline measured =
      measure_roofline(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  return measured;
}

}  // namespace mhar_bench
