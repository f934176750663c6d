// SPDX-License-Identifier: Apache-2.0
//! C++14 is refused in one sentence, before anything else goes wrong.
// flags: -std=c++14 -Wfatal-errors
// expect: mhar needs C\+\+17 or later
#include <mhar/mhar.hpp>
