// SPDX-License-Identifier: Apache-2.0
//! One block of memory that holds every array of a call, with slack behind them: a mutated pointer, stride or element type stays
//! inside, and whatever is written where it should not be shows.
#pragma once

#include "support/tensor.hpp"

#include <cstring>
#include <map>
#include <vector>

namespace mhar_test {

//! Bytes that pieces are handed out from and taken back all at once. Memory(bytes) owns bytes that the host and the backend
//! reach at data().
template <class Memory, std::int64_t Used, std::int64_t All>
class fuzz_memory
{
public:
  static constexpr std::int64_t used_bytes = Used;
  static constexpr std::int64_t all_bytes = All;

  fuzz_memory() : memory_{static_cast<std::size_t>(all_bytes + alignment)}
  {
    const auto past = reinterpret_cast<std::uintptr_t>(memory_.data()) % alignment;
    data_ = memory_.data() + (alignment - past) % alignment;
    clear();
  }

  void clear()
  {
    std::memset(data_, poison, static_cast<std::size_t>(all_bytes));
    next_ = 0;
    starts_.clear();
  }
  //! Where the next `bytes` bytes begin, `phase` past a multiple of `aligned`; negative when they do not fit any more.
  [[nodiscard]] std::int64_t take(std::int64_t bytes, std::int64_t aligned, std::int64_t phase)
  {
    const std::int64_t begin = (next_ + aligned - 1) / aligned * aligned + phase;
    next_ = begin + bytes;
    return next_ > used_bytes ? -1 : begin;
  }
  void remember_start(std::int64_t start) { starts_.push_back(start); }

  [[nodiscard]] unsigned char* data() const noexcept { return data_; }
  //! Where arrays start.
  [[nodiscard]] const std::vector<std::int64_t>& starts() const noexcept { return starts_; }
  //! Whether a matrix is inside; an absent one is.
  [[nodiscard]] bool holds(const void* matrix, mhar::element type, std::int64_t count,
                           std::int64_t stride, std::int64_t width) const noexcept
  {
    if (matrix == nullptr || count == 0) { return true; }
    if (stride > all_bytes || width > all_bytes || count > all_bytes) { return false; }
    const std::int64_t offset = static_cast<const unsigned char*>(matrix) - data_;
    return offset >= 0 && offset <= all_bytes &&
           offset + ((count - 1) * stride + width) * mhar::size_of(type) <= all_bytes;
  }

private:
  static constexpr std::size_t alignment = 256;

  Memory memory_;
  unsigned char* data_;
  std::int64_t next_ = 0;
  std::vector<std::int64_t> starts_;
};

//! Given to call_case::forward and the like in place of the arrays' own memory.
template <class Memory>
class fuzz_arena : public fuzz_memory<Memory, (std::int64_t{1} << 17), (std::int64_t{1} << 19)>
{
public:
  //! Where the array's elements are, as far past a 64-byte boundary as in its own memory; null for an absent one.
  void* operator()(tensor& array)
  {
    if (!array) { return nullptr; }
    const auto found = places_.find(&array);
    if (found != places_.end()) { return this->data() + found->second; }
    const auto phase =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(array.storage()) % 64);
    const std::int64_t begin =
        this->take(static_cast<std::int64_t>(array.storage_bytes()), 64, phase);
    if (begin < 0) {
      fits_ = false;
      return this->data();
    }
    const std::int64_t start =
        begin + (static_cast<unsigned char*>(array.data()) - array.storage());
    std::memcpy(this->data() + begin, array.storage(), array.storage_bytes());
    places_.emplace(&array, start);
    this->remember_start(start);
    return this->data() + start;
  }

  //! Whether there was room for all.
  [[nodiscard]] bool fits() const noexcept { return fits_; }

private:
  bool fits_ = true;
  std::map<tensor*, std::int64_t> places_;
};

}  // namespace mhar_test
