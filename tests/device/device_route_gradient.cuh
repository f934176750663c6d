// SPDX-License-Identifier: Apache-2.0
//! device::route_gradient for tests: instantiated once per element type in
//! route_gradient_<type>.cu, since its kernels take long to compile.
#pragma once

#include <mhar/device/instantiate.cuh>

MHAR_INSTANTIATE_ROUTE_GRADIENT(extern, mhar::bfloat16)
MHAR_INSTANTIATE_ROUTE_GRADIENT(extern, mhar::float16)
MHAR_INSTANTIATE_ROUTE_GRADIENT(extern, float)
MHAR_INSTANTIATE_ROUTE_GRADIENT(extern, double)
