// SPDX-License-Identifier: Apache-2.0
//! What every verb of the CPU backend is given besides its problem.
#pragma once

#include <mhar/cpu/executor.hpp>

#include <cstddef>

MHAR_NAMESPACE_BEGIN
namespace cpu {

//! Where to run, and scratch memory of the caller (any alignment) that is overwritten. A verb has returned when its work is
//! done. Concurrent verbs need a workspace each.
struct context
{
  executor run;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

}  // namespace cpu
MHAR_NAMESPACE_END
