// SPDX-License-Identifier: Apache-2.0
//! Compiler configuration: every macro of the library, and the inline namespace that carries the version.
#pragma once

#include <mhar/version.hpp>

#if defined(_MSVC_LANG)
#  define MHAR_CPLUSPLUS _MSVC_LANG
#else
#  define MHAR_CPLUSPLUS __cplusplus
#endif
#if MHAR_CPLUSPLUS < 201703L
#  error "mhar needs C++17 or later: compile with -std=c++17"
#endif

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ != 0
#  error \
      "mhar computes with infinities and NaN: compile without -ffast-math, or add -fno-finite-math-only"
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#  error \
      "mhar needs compute capability 8.0 or later: compile with -arch=sm_80 or newer (without -arch, nvcc chooses an older one)"
#endif

#if defined(__CUDACC__)
#  define MHAR_HOST_DEVICE __host__ __device__
#else
#  define MHAR_HOST_DEVICE
#endif

//! Inlining that a kernel's speed depends on.
#if defined(_MSC_VER)
#  define MHAR_FORCE_INLINE __forceinline
#else
#  define MHAR_FORCE_INLINE inline __attribute__((always_inline))
#endif

#define MHAR_DETAIL_JOIN_(a, b, c) a##b##_##c
#define MHAR_DETAIL_JOIN(a, b, c) MHAR_DETAIL_JOIN_(a, b, c)

//! Opens namespace mhar with the version inside it, so that two shared libraries built from different versions can live in
//! one process: their symbols differ, while users write `mhar::` alone.
#define MHAR_NAMESPACE_BEGIN                                                   \
  namespace mhar {                                                             \
  inline namespace MHAR_DETAIL_JOIN(v, MHAR_VERSION_MAJOR, MHAR_VERSION_MINOR) \
  {
#define MHAR_NAMESPACE_END \
  }                        \
  }

//! Opens, inside namespace device, a namespace named after the architectures that this file is compiled for. It goes around what
//! launches kernels, and never around types: two shared libraries built for different architectures must not use each other's
//! launchers, but must agree on a context.
#if defined(__CUDA_ARCH_LIST__)
#  define MHAR_DETAIL_LIST_1(a) sm_##a
#  define MHAR_DETAIL_LIST_2(a, b) sm_##a##_##b
#  define MHAR_DETAIL_LIST_3(a, b, c) sm_##a##_##b##_##c
#  define MHAR_DETAIL_LIST_4(a, b, c, d) sm_##a##_##b##_##c##_##d
#  define MHAR_DETAIL_LIST_5(a, b, c, d, e) sm_##a##_##b##_##c##_##d##_##e
#  define MHAR_DETAIL_LIST_6(a, b, c, d, e, ...) sm_##a##_##b##_##c##_##d##_##e##_and_more
#  define MHAR_DETAIL_PICK(a, b, c, d, e, f, g, h, i, j, k, l, name, ...) name
#  define MHAR_DETAIL_LIST(...)                                                               \
    MHAR_DETAIL_PICK(__VA_ARGS__, MHAR_DETAIL_LIST_6, MHAR_DETAIL_LIST_6, MHAR_DETAIL_LIST_6, \
                     MHAR_DETAIL_LIST_6, MHAR_DETAIL_LIST_6, MHAR_DETAIL_LIST_6,              \
                     MHAR_DETAIL_LIST_6, MHAR_DETAIL_LIST_5, MHAR_DETAIL_LIST_4,              \
                     MHAR_DETAIL_LIST_3, MHAR_DETAIL_LIST_2, MHAR_DETAIL_LIST_1, unused)      \
    (__VA_ARGS__)
#  define MHAR_LAUNCHERS_BEGIN                            \
    inline namespace MHAR_DETAIL_LIST(__CUDA_ARCH_LIST__) \
    {
#else
#  define MHAR_LAUNCHERS_BEGIN inline namespace any_architecture {
#endif
#define MHAR_LAUNCHERS_END }

//! A condition that the library itself guarantees; checked in debug builds only, in host and device code alike.
#if defined(NDEBUG)
#  define MHAR_ASSERT(condition) static_cast<void>(0)
#elif defined(__CUDA_ARCH__)
#  define MHAR_ASSERT(condition) ((condition) ? static_cast<void>(0) : __trap())
#else
#  include <cassert>
#  define MHAR_ASSERT(condition) assert(condition)
#endif
