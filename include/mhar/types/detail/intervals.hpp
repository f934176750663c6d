// SPDX-License-Identifier: Apache-2.0
//! Many intervals of memory and whether they meet: sorted, so that not every two need be compared.
#pragma once

#include <mhar/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace detail {

//! Bytes [begin, end); nothing when end is not after begin.
struct interval
{
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;

  [[nodiscard]] bool empty() const noexcept { return end <= begin; }
  [[nodiscard]] bool meets(const interval& other) const noexcept
  {
    return !empty() && !other.empty() && begin < other.end && other.begin < end;
  }
};

[[nodiscard]] inline interval bytes_at(const void* data, std::size_t bytes) noexcept
{
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + bytes};
}

//! The intervals get(0) to get(count - 1), sorted where there is room for them; more are compared one by one.
template <class Get>
class intervals
{
public:
  static constexpr std::int64_t capacity = 1024;

  intervals(std::int64_t count, const Get& get) noexcept : get_{get}, count_{count}
  {
    if (count > capacity) { return; }
    for (std::int64_t i = 0; i < count; ++i) {
      if (const interval each = get(i); !each.empty()) { sorted_[size_++] = each; }
    }
    std::sort(sorted_, sorted_ + size_,
              [](const interval& a, const interval& b) { return a.begin < b.begin; });
  }

  [[nodiscard]] bool disjoint() const noexcept
  {
    for (std::size_t i = 1; i < size_; ++i) {
      if (sorted_[i].begin < sorted_[i - 1].end) { return false; }
    }
    for (std::int64_t i = 1; count_ > capacity && i < count_; ++i) {
      for (std::int64_t j = 0; j < i; ++j) {
        if (get_(i).meets(get_(j))) { return false; }
      }
    }
    return true;
  }

  //! Whether any of them, which are disjoint, meets `other`.
  [[nodiscard]] bool any_meets(const interval& other) const noexcept
  {
    for (std::int64_t i = 0; count_ > capacity && i < count_; ++i) {
      if (get_(i).meets(other)) { return true; }
    }
    const interval* const last = sorted_ + size_;
    const interval* const after =
        std::lower_bound(sorted_, last, other.end,
                         [](const interval& a, std::uintptr_t end) { return a.begin < end; });
    return after != sorted_ && after[-1].meets(other);
  }

private:
  interval sorted_[std::size_t{capacity}];
  std::size_t size_ = 0;
  const Get& get_;
  std::int64_t count_;
};

}  // namespace detail
MHAR_NAMESPACE_END
