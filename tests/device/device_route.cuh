// SPDX-License-Identifier: Apache-2.0
//! device::route for tests: instantiated once per element type in route_<type>.cu, since its kernels take long to compile.
#pragma once

#include <mhar/device/instantiate.cuh>

MHAR_INSTANTIATE_ROUTE(extern, mhar::bfloat16)
MHAR_INSTANTIATE_ROUTE(extern, mhar::float16)
MHAR_INSTANTIATE_ROUTE(extern, float)
MHAR_INSTANTIATE_ROUTE(extern, double)
