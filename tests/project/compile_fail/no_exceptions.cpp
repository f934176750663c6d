// SPDX-License-Identifier: Apache-2.0
//! A project without exceptions is told so, not shown where they are used.
// flags: -std=c++17 -fno-exceptions -Wfatal-errors
// expect: mhar needs exceptions
#include <mhar/status.hpp>
