// SPDX-License-Identifier: Apache-2.0
//! The sweeps on the naive backend.
#include "sweep_bodies.hpp"

namespace {
template <class T>
using on = mhar_test::sweep_on<mhar_test::naive_backend, T>;
}

MHAR_TEST_SWEEPS(on<double>, on<float>, on<mhar::bfloat16>)
