// SPDX-License-Identifier: Apache-2.0
//! What every verb of the CPU backend is given besides its problem.
#pragma once

#include <mhar/cpu/executor.hpp>
#include <mhar/types/view.hpp>

#include <cstddef>

MHAR_NAMESPACE_BEGIN
namespace cpu {

//! Where to run, and scratch memory of the caller (any alignment) that is overwritten: a problem one of whose arrays it overlaps is
//! refused. A verb has returned when its work is done. Concurrent verbs need a workspace each.
struct context
{
  executor run;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;

  [[nodiscard]] workspace_view scratch() const noexcept { return {workspace, workspace_bytes}; }
};

}  // namespace cpu
MHAR_NAMESPACE_END
