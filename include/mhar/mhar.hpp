// SPDX-License-Identifier: Apache-2.0
//! Everything that any C++17 compiler can use: no CUDA toolkit needed, and no Eigen (the reference is included by itself).
#pragma once

#include <mhar/config.hpp>
#include <mhar/status.hpp>
#include <mhar/version.hpp>
