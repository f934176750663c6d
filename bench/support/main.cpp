// SPDX-License-Identifier: Apache-2.0
//! The benchmark runner, linked into every benchmark executable.
#include <benchmark/benchmark.h>

BENCHMARK_MAIN();
