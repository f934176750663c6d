// SPDX-License-Identifier: Apache-2.0
//! The sweeps' kernels for rows of double.
#include "device/device_sweep.cuh"

MHAR_INSTANTIATE_SWEEPS(, double)
