// SPDX-License-Identifier: Apache-2.0
//! Device code for a GPU older than any that is supported is refused in one sentence: what nvcc makes when it is not told -arch.
// flags: -std=c++17 -D__CUDA_ARCH__=750 -Wfatal-errors
// expect: mhar needs compute capability 8.0 or later
#include <mhar/config.hpp>
