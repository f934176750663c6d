// SPDX-License-Identifier: Apache-2.0
//! The forward's kernels for rows of float32.
#include "device/device_route.cuh"

MHAR_INSTANTIATE_ROUTE(, float)
