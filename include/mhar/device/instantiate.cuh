// SPDX-License-Identifier: Apache-2.0
//! Kernels take a compiler minutes. A program whose several files launch them compiles them once: a header of its own
//! declares the verbs that it calls `extern`, for the element types of its rows, and one .cu file per type defines them:
//!
//!     MHAR_INSTANTIATE_SWEEPS(extern, mhar::bfloat16)  // kernels.cuh, included wherever a sweep is launched
//!     MHAR_INSTANTIATE_SWEEPS(, mhar::bfloat16)        // kernels.cu
//!
//! All these files are compiled for the same architectures. At global scope.
#pragma once

#include <mhar/device/route.cuh>
#include <mhar/device/route_gradient.cuh>
#include <mhar/device/sweep.cuh>

//! device::route of one call, with an update or without.
#define MHAR_INSTANTIATE_ROUTE(linkage, T)                                                     \
  linkage template mhar::status mhar::device::route<T>(const mhar::route_problem<T>&,          \
                                                       const mhar::device::context&) noexcept; \
  linkage template mhar::status mhar::device::route<T>(const mhar::update_problem<T>&,         \
                                                       const mhar::device::context&) noexcept;

//! device::route_gradient.
#define MHAR_INSTANTIATE_ROUTE_GRADIENT(linkage, T)              \
  linkage template mhar::status mhar::device::route_gradient<T>( \
      const mhar::route_gradient_problem<T>&, const mhar::device::context&) noexcept;

//! The five verbs of sweeps.
#define MHAR_INSTANTIATE_SWEEPS(linkage, T)                                                      \
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
