// SPDX-License-Identifier: Apache-2.0
//! A buffer between two guard bands, all of it filled with a pattern that is NaN in every element type: a write outside it and
//! an element that nobody wrote both show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace mhar_test {

constexpr unsigned char poison = 0xff;
constexpr std::int64_t guard_elements = 64;

//! Whether every byte is still the pattern.
inline bool all_poison(const void* data, std::size_t bytes)
{
  const auto* const first = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (first[i] != poison) { return false; }
  }
  return true;
}

//! `count` elements that start `offset` elements past a 64-byte boundary.
template <class T>
class guarded
{
public:
  explicit guarded(std::int64_t count, std::int64_t offset = 0)
      : count_{count},
        bytes_(static_cast<std::size_t>(count + offset + 2 * guard_elements) * sizeof(T) + 64,
               poison)
  {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    const auto before = static_cast<std::size_t>((64 - address % 64) % 64);
    start_ = before + static_cast<std::size_t>(guard_elements + offset) * sizeof(T);
  }
  //! The alignment of the elements would not survive a copy.
  guarded(const guarded&) = delete;
  guarded& operator=(const guarded&) = delete;
  guarded(guarded&&) noexcept = default;
  guarded& operator=(guarded&&) noexcept = default;
  ~guarded() = default;

  [[nodiscard]] T* data() noexcept { return reinterpret_cast<T*>(bytes_.data() + start_); }
  [[nodiscard]] const T* data() const noexcept
  {
    return reinterpret_cast<const T*>(bytes_.data() + start_);
  }
  [[nodiscard]] std::int64_t size() const noexcept { return count_; }
  [[nodiscard]] T& operator[](std::int64_t i) noexcept { return data()[i]; }
  [[nodiscard]] const T& operator[](std::int64_t i) const noexcept { return data()[i]; }
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  [[nodiscard]] const T* end() const noexcept { return data() + count_; }

  //! The elements with their guards, for a copy to other memory.
  [[nodiscard]] unsigned char* storage() noexcept { return bytes_.data(); }
  [[nodiscard]] std::size_t storage_bytes() const noexcept { return bytes_.size(); }

  //! Nothing was written before or after the elements.
  [[nodiscard]] bool guards_intact() const
  {
    const std::size_t stop = start_ + payload();
    return all_poison(bytes_.data(), start_) &&
           all_poison(bytes_.data() + stop, bytes_.size() - stop);
  }
  //! Nothing was written at all.
  [[nodiscard]] bool untouched() const { return all_poison(bytes_.data(), bytes_.size()); }
  //! Fills the elements with the pattern again.
  void reset() { std::memset(bytes_.data() + start_, poison, payload()); }

private:
  [[nodiscard]] std::size_t payload() const noexcept
  {
    return static_cast<std::size_t>(count_) * sizeof(T);
  }

  std::int64_t count_;
  std::vector<unsigned char> bytes_;
  std::size_t start_ = 0;
};

}  // namespace mhar_test
