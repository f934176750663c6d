// SPDX-License-Identifier: Apache-2.0
//! The header for nvcc says so to a C++ compiler, before a header of CUDA is not found.
// flags: -std=c++17 -Wfatal-errors
// expect: is for .cu files and nvcc
#if defined(MHAR_WRONG)
#  include <mhar/mhar.cuh>
#else
#  include <mhar/mhar.hpp>
#endif
