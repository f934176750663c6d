// SPDX-License-Identifier: Apache-2.0
//! Memory for a workspace or a router's block on the CPU, owned, and aligned as a router wants it.
#pragma once

#include <mhar/cpu/context.hpp>

#include <cstddef>
#include <new>
#include <utility>

MHAR_NAMESPACE_BEGIN
namespace cpu {

//! Owns `size()` bytes that begin at a multiple of 256. They are not initialised.
//!
//!     aligned_memory workspace{workspace_bytes(problem, {})};
//!     check(route(problem, workspace.context()));
//!
//! Errors       the constructor throws std::bad_alloc
class aligned_memory
{
public:
  static constexpr std::size_t alignment = 256;

  aligned_memory() noexcept = default;
  explicit aligned_memory(std::size_t bytes)
      : data_{bytes == 0 ? nullptr : ::operator new (bytes, std::align_val_t{alignment})},
        size_{bytes}
  {
  }
  //! Not copyable: what points into the memory would not follow.
  aligned_memory(const aligned_memory&) = delete;
  aligned_memory& operator=(const aligned_memory&) = delete;
  aligned_memory(aligned_memory&& other) noexcept
      : data_{std::exchange(other.data_, nullptr)}, size_{std::exchange(other.size_, 0)}
  {
  }
  aligned_memory& operator=(aligned_memory&& other) noexcept
  {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~aligned_memory()
  {
    if (data_ != nullptr) { ::operator delete (data_, std::align_val_t{alignment}); }
  }

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  //! A context that works in this memory.
  [[nodiscard]] cpu::context context(executor run = {}) const noexcept
  {
    return {run, data_, size_};
  }

private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace cpu
MHAR_NAMESPACE_END
