// SPDX-License-Identifier: Apache-2.0
//! What every verb that uses its workspace asks before anything else.
#pragma once

#include <mhar/device/context.cuh>
#include <mhar/types/update.hpp>
#include <mhar/types/validate.hpp>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Whether the problem is valid, and the workspace apart from its arrays and where kernels can use it.
template <class Problem>
[[nodiscard]] status check_problem(const Problem& problem, const context& where) noexcept
{
  if (const status valid = validate(problem, where.scratch()); !valid.ok()) { return valid; }
  constexpr std::uintptr_t alignment = 256;
  if (reinterpret_cast<std::uintptr_t>(where.workspace) % alignment == 0) { return {}; }
  return {code::bad_alignment, "workspace", "the workspace is not a multiple of 256 bytes", 0};
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
