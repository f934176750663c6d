// SPDX-License-Identifier: Apache-2.0
//! Arithmetic without infinities and NaN would give silently wrong results.
// flags: -std=c++17 -ffast-math -Wfatal-errors
// expect: compile without -ffast-math
#include <mhar/mhar.hpp>
