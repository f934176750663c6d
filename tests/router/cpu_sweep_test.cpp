// SPDX-License-Identifier: Apache-2.0
//! The sweeps on the CPU backend.
#include "cpu_access.hpp"
#include "sweep_bodies.hpp"

namespace {
template <class T>
using on = mhar_test::sweep_on<mhar::cpu::backend, T>;
}

MHAR_TEST_SWEEPS(on<double>, on<float>, on<mhar::bfloat16>, on<mhar::float16>)
