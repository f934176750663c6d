// SPDX-License-Identifier: Apache-2.0
//! The sweeps' kernels that benchmarks run.
#include "support/device_sweep.cuh"

MHAR_BENCH_SWEEP(, mhar::bfloat16)
MHAR_BENCH_SWEEP(, float)
