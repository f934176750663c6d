// SPDX-License-Identifier: Apache-2.0
//! Carving arrays out of a workspace; run over no memory, the same code measures what it needs.
#pragma once

#include <mhar/config.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Sizes that do not fit become the largest there is, which no workspace has.
inline constexpr std::size_t too_many_bytes = (std::numeric_limits<std::size_t>::max)();
[[nodiscard]] constexpr std::size_t add_sizes(std::size_t a, std::size_t b) noexcept
{
  return a > too_many_bytes - b ? too_many_bytes : a + b;
}
[[nodiscard]] constexpr std::size_t multiply_sizes(std::size_t a, std::size_t b) noexcept
{
  return b != 0 && a > too_many_bytes / b ? too_many_bytes : a * b;
}

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
    used_ = align(add_sizes(used_, multiply_sizes(static_cast<std::size_t>(count), sizeof(Value))));
    return start;
  }
  //! Enough for everything taken so far, wherever the block starts.
  [[nodiscard]] std::size_t bytes() const noexcept { return add_sizes(used_, alignment); }

private:
  static constexpr std::uintptr_t alignment = 64;
  [[nodiscard]] static constexpr std::uintptr_t align(std::uintptr_t address) noexcept
  {
    return add_sizes(address, alignment - 1) / alignment * alignment;
  }

  std::uintptr_t begin_ = 0;
  std::uintptr_t used_ = 0;
};

}  // namespace cpu::detail
MHAR_NAMESPACE_END
