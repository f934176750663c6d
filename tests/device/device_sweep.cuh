// SPDX-License-Identifier: Apache-2.0
//! The sweeps' verbs on a GPU for tests: instantiated once per element type in sweep_<type>.cu, since their kernels take long
//! to compile.
#pragma once

#include <mhar/device/sweep.cuh>

#define MHAR_TEST_SWEEP(linkage, T)                                                              \
  linkage template mhar::status mhar::device::fold<T>(const mhar::fold_problem<T>&,              \
                                                      const mhar::device::context&) noexcept;    \
  linkage template mhar::status mhar::device::advance<T>(const mhar::advance_problem<T>&,        \
                                                         const mhar::device::context&) noexcept; \
  linkage template mhar::status mhar::device::output_gradient<T>(                                \
      const mhar::output_gradient_problem<T>&, const mhar::device::context&) noexcept;           \
  linkage template mhar::status mhar::device::gather<T>(const mhar::gather_problem<T>&,          \
                                                        const mhar::device::context&) noexcept;  \
  linkage template mhar::status mhar::device::reduce<T>(const mhar::reduce_problem<T>&,          \
                                                        const mhar::device::context&) noexcept;

MHAR_TEST_SWEEP(extern, mhar::bfloat16)
MHAR_TEST_SWEEP(extern, mhar::float16)
MHAR_TEST_SWEEP(extern, float)
MHAR_TEST_SWEEP(extern, double)
