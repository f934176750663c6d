// SPDX-License-Identifier: Apache-2.0
//! The sweeps' verbs on a GPU for tests: instantiated once per element type in sweep_<type>.cu, since their kernels take long
//! to compile.
#pragma once

#include <mhar/device/instantiate.cuh>

MHAR_INSTANTIATE_SWEEPS(extern, mhar::bfloat16)
MHAR_INSTANTIATE_SWEEPS(extern, mhar::float16)
MHAR_INSTANTIATE_SWEEPS(extern, float)
MHAR_INSTANTIATE_SWEEPS(extern, double)
