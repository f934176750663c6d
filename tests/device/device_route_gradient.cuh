// SPDX-License-Identifier: Apache-2.0
//! device::route_gradient for tests: instantiated once per element type in
//! route_gradient_<type>.cu, since its kernels take long to compile.
#pragma once

#include <mhar/device/route_gradient.cuh>

#define MHAR_TEST_ROUTE_GRADIENT(linkage, T)                  \
  linkage template mhar::status mhar::device::route_gradient( \
      const mhar::route_gradient_problem<T>&, const mhar::device::context&) noexcept;

MHAR_TEST_ROUTE_GRADIENT(extern, mhar::bfloat16)
MHAR_TEST_ROUTE_GRADIENT(extern, mhar::float16)
MHAR_TEST_ROUTE_GRADIENT(extern, float)
MHAR_TEST_ROUTE_GRADIENT(extern, double)
