// SPDX-License-Identifier: Apache-2.0
//! The sweeps' verbs on a GPU for benchmarks: instantiated once, in device_sweep.cu, since their kernels take long to compile.
#pragma once

#include <mhar/device/sweep.cuh>

#define MHAR_BENCH_SWEEP(linkage, T)                                                             \
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

MHAR_BENCH_SWEEP(extern, mhar::bfloat16)
MHAR_BENCH_SWEEP(extern, float)
