// SPDX-License-Identifier: Apache-2.0
//! One block of memory that holds every array of a call, with slack behind them: a mutated pointer, stride or element type stays
//! inside, and whatever is written where it should not be shows.
#pragma once

#include "support/tensor.hpp"

#include <cstring>
#include <map>
#include <vector>

namespace mhar_test {

//! Given to call_case::forward and the like in place of the arrays' own memory. Memory(bytes) owns bytes that the host and the
//! backend reach at data(), 64-byte aligned.
template <class Memory>
class fuzz_arena
{
public:
  static constexpr std::int64_t used_bytes = std::int64_t{1} << 17;
  static constexpr std::int64_t all_bytes = std::int64_t{1} << 19;

  fuzz_arena() : memory_{static_cast<std::size_t>(all_bytes)}
  {
    std::memset(memory_.data(), poison, static_cast<std::size_t>(all_bytes));
  }

  //! Where the array's elements are, as far past a 64-byte boundary as in its own memory; null for an absent one.
  void* operator()(tensor& array)
  {
    if (!array) { return nullptr; }
    const auto found = places_.find(&array);
    if (found != places_.end()) { return memory_.data() + found->second; }
    const auto phase =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(array.storage()) % 64);
    const auto size = static_cast<std::int64_t>(array.storage_bytes());
    const std::int64_t begin = (next_ + 63) / 64 * 64 + phase;
    const std::int64_t start =
        begin + (static_cast<unsigned char*>(array.data()) - array.storage());
    next_ = begin + size;
    if (next_ > used_bytes) {
      fits_ = false;
      return memory_.data();
    }
    std::memcpy(memory_.data() + begin, array.storage(), array.storage_bytes());
    places_.emplace(&array, start);
    starts_.push_back(start);
    return memory_.data() + start;
  }

  //! Whether there was room for all.
  [[nodiscard]] bool fits() const noexcept { return fits_; }
  [[nodiscard]] unsigned char* data() const noexcept { return memory_.data(); }
  //! Where arrays start.
  [[nodiscard]] const std::vector<std::int64_t>& starts() const noexcept { return starts_; }
  //! Whether a matrix is inside; an absent one is.
  [[nodiscard]] bool holds(const void* matrix, mhar::element type, std::int64_t count,
                           std::int64_t stride, std::int64_t width) const noexcept
  {
    if (matrix == nullptr || count == 0) { return true; }
    if (stride > all_bytes || width > all_bytes || count > all_bytes) { return false; }
    const std::int64_t offset = static_cast<const unsigned char*>(matrix) - memory_.data();
    return offset >= 0 && offset <= all_bytes &&
           offset + ((count - 1) * stride + width) * mhar::size_of(type) <= all_bytes;
  }

private:
  Memory memory_;
  std::int64_t next_ = 0;
  bool fits_ = true;
  std::map<tensor*, std::int64_t> places_;
  std::vector<std::int64_t> starts_;
};

}  // namespace mhar_test
