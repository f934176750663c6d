// SPDX-License-Identifier: Apache-2.0
//! Carving arrays out of a workspace; run over no memory, the same code measures what it needs.
#pragma once

#include <mhar/config.hpp>

#include <cstddef>
#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Hands out 64-byte aligned arrays from the start of a block. One made by default only counts.
class arena
{
public:
  arena() = default;
  explicit arena(void* block) noexcept : begin_{align(reinterpret_cast<std::uintptr_t>(block))} {}

  template <class Value>
  [[nodiscard]] Value* take(std::int64_t count) noexcept
  {
    auto* const start = reinterpret_cast<Value*>(begin_ + used_);
    used_ = align(used_ + static_cast<std::uintptr_t>(count) * sizeof(Value));
    return start;
  }
  //! Enough for everything taken so far, wherever the block starts.
  [[nodiscard]] std::size_t bytes() const noexcept { return used_ + alignment; }

private:
  static constexpr std::uintptr_t alignment = 64;
  [[nodiscard]] static constexpr std::uintptr_t align(std::uintptr_t address) noexcept
  {
    return (address + alignment - 1) / alignment * alignment;
  }

  std::uintptr_t begin_ = 0;
  std::uintptr_t used_ = 0;
};

}  // namespace cpu::detail
MHAR_NAMESPACE_END
