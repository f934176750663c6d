// SPDX-License-Identifier: Apache-2.0
//! The library's version: the one place it is written; CMake reads it from here.
#pragma once

#define MHAR_VERSION_MAJOR 0
#define MHAR_VERSION_MINOR 1
#define MHAR_VERSION_PATCH 0
