// SPDX-License-Identifier: Apache-2.0
//! The test runner, compiled once and linked into every suite.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
