// SPDX-License-Identifier: Apache-2.0
//! The measured limits of the processor as entries of the results, so that a results file stands by itself.
#include "support/cpu_roofline.hpp"

#include <benchmark/benchmark.h>

namespace {

//! One iteration, in which the time is not what counts: the counter is.
void cpu_limits(benchmark::State& state)
{
  for (auto step : state) { benchmark::DoNotOptimize(&mhar_bench::roofline()); }
  state.counters["copy_bytes_per_second"] = mhar_bench::roofline().memory.copy_bytes_per_second;
  state.counters["multiply_adds_per_second"] = mhar_bench::roofline().multiply_adds_per_second;
  state.counters["cache_bytes"] = static_cast<double>(mhar_bench::roofline().memory.cache_bytes);
}

}  // namespace

BENCHMARK(cpu_limits)->Name("cpu/limits")->Iterations(1);
