// SPDX-License-Identifier: Apache-2.0
//! The sweeps' kernels for rows of bfloat16.
#include "device/device_sweep.cuh"

MHAR_INSTANTIATE_SWEEPS(, mhar::bfloat16)
