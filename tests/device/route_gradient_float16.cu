// SPDX-License-Identifier: Apache-2.0
//! The backward's kernels for rows of float16.
#include "device/device_route_gradient.cuh"

MHAR_INSTANTIATE_ROUTE_GRADIENT(, mhar::float16)
