// SPDX-License-Identifier: Apache-2.0
//! The sweeps' kernels for rows of float16, beside those of device_sweep.cu.
#include "support/device_sweep.cuh"

MHAR_INSTANTIATE_SWEEPS(, mhar::float16)
