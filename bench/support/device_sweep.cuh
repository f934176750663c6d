// SPDX-License-Identifier: Apache-2.0
//! The sweeps' verbs on a GPU for benchmarks: instantiated once, in device_sweep*.cu, since their kernels take long to compile.
#pragma once

#include <mhar/device/instantiate.cuh>

MHAR_INSTANTIATE_SWEEPS(extern, mhar::bfloat16)
MHAR_INSTANTIATE_SWEEPS(extern, mhar::float16)
MHAR_INSTANTIATE_SWEEPS(extern, float)
