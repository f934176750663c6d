// SPDX-License-Identifier: Apache-2.0
//! The sweeps' kernels that benchmarks run.
#include "support/device_sweep.cuh"

MHAR_INSTANTIATE_SWEEPS(, mhar::bfloat16)
MHAR_INSTANTIATE_SWEEPS(, float)
