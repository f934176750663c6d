// SPDX-License-Identifier: Apache-2.0
//! The forward's kernels for rows of float16.
#include "device/device_route.cuh"

MHAR_INSTANTIATE_ROUTE(, mhar::float16)
