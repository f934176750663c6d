// SPDX-License-Identifier: Apache-2.0
//! device::route for tests: instantiated once per element type in route_<type>.cu, since its kernels take long to compile.
#pragma once

#include <mhar/device/route.cuh>

#define MHAR_TEST_ROUTE(linkage, T)                                                            \
  linkage template mhar::status mhar::device::route<T>(const mhar::route_problem<T>&,          \
                                                       const mhar::device::context&) noexcept; \
  linkage template mhar::status mhar::device::route<T>(const mhar::update_problem<T>&,         \
                                                       const mhar::device::context&) noexcept;

MHAR_TEST_ROUTE(extern, mhar::bfloat16)
MHAR_TEST_ROUTE(extern, mhar::float16)
MHAR_TEST_ROUTE(extern, float)
MHAR_TEST_ROUTE(extern, double)
