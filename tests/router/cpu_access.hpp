// SPDX-License-Identifier: Apache-2.0
//! The CPU backend's memory and contexts.
#pragma once

#include "backend_memory.hpp"

#include <mhar/cpu/backend.hpp>

namespace mhar_test {

template <>
struct backend_access<mhar::cpu::backend> : host_access
{
  static mhar::cpu::context context() { return {}; }
};

}  // namespace mhar_test
