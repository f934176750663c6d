// SPDX-License-Identifier: Apache-2.0
//! Whether the gradients of many rows lie apart. Their starts are sorted, so that the usual layouts are recognised without
//! comparing every two; only others are compared pair by pair.
#pragma once

#include <mhar/types/detail/checker.hpp>

#include <algorithm>

MHAR_NAMESPACE_BEGIN
namespace detail {

//! The starts of regions that are otherwise alike: the first and the last, and up to `capacity` of them all, sorted.
class sorted_starts
{
public:
  static constexpr int capacity = 1024;

  //! `start(n)` is the address of region n, 0 for one that does not exist.
  template <class Start>
  sorted_starts(int count, const Start& start) noexcept : complete_{count <= capacity}
  {
    for (int n = 0; n < count; ++n) {
      const std::uintptr_t at = start(n);
      if (at == 0) { continue; }
      first_ = (std::min)(first_, at);
      last_ = (std::max)(last_, at);
      if (complete_) { starts_[size_++] = at; }
    }
    std::sort(starts_, starts_ + size_);
  }
  //! Whether all are kept.
  [[nodiscard]] bool complete() const noexcept { return complete_; }
  [[nodiscard]] std::uintptr_t first() const noexcept { return first_; }
  [[nodiscard]] std::uintptr_t last() const noexcept { return last_; }
  [[nodiscard]] const std::uintptr_t* begin() const noexcept { return starts_; }
  [[nodiscard]] const std::uintptr_t* end() const noexcept { return starts_ + size_; }

private:
  std::uintptr_t starts_[std::size_t{capacity}];
  std::size_t size_ = 0;
  std::uintptr_t first_ = (std::numeric_limits<std::uintptr_t>::max)();
  std::uintptr_t last_ = 0;
  bool complete_;
};

//! Whether regions like `like` at these starts are plainly apart from each other: one after the other, or side by side within one
//! stride, as the rows of a token-major matrix are. False says nothing.
[[nodiscard]] inline bool plainly_apart(const sorted_starts& starts, const region& like) noexcept
{
  if (!starts.complete() || starts.begin() == starts.end()) { return starts.complete(); }
  const auto bytes = static_cast<std::uintptr_t>(like.bytes);
  const auto length = static_cast<std::uintptr_t>((like.count - 1) * like.stride + like.bytes);
  std::uintptr_t least = length;  // between the starts of two neighbours
  for (const std::uintptr_t* at = starts.begin() + 1; at < starts.end(); ++at) {
    least = (std::min)(least, at[0] - at[-1]);
  }
  const std::uintptr_t first_to_last = *(starts.end() - 1) - *starts.begin();
  const bool in_one_stride =
      like.stride > 0 && first_to_last + bytes <= static_cast<std::uintptr_t>(like.stride);
  return least >= length || (in_one_stride && least >= bytes);
}

//! Whether the bounds of no region of one kind and of one of the other kind share a byte. False says nothing.
[[nodiscard]] inline bool plainly_apart(const sorted_starts& starts, const region& like,
                                        const sorted_starts& others,
                                        const region& others_like) noexcept
{
  const auto length = [](const region& of) {
    return static_cast<std::uintptr_t>((of.count - 1) * of.stride + of.bytes);
  };
  const std::uintptr_t own_length = length(like);
  const std::uintptr_t other_length = length(others_like);
  if (starts.last() + own_length <= others.first() ||
      others.last() + other_length <= starts.first()) {
    return true;
  }
  if (!starts.complete() || !others.complete()) { return false; }
  const std::uintptr_t* other = others.begin();
  for (const std::uintptr_t start : starts) {
    while (other != others.end() && *other + other_length <= start) { ++other; }
    if (other == others.end()) { return true; }
    if (*other < start + own_length) { return false; }
  }
  return true;
}

//! The rows' gradients: each apart from everything in `read` and `written`, from the rows, and from one another.
template <class T, std::size_t Read, std::size_t Written>
void check_row_gradients(checker& checks, const gradient_rows& gradients, const const_rows<T>& rows,
                         int num_rows, const shape& extent, const region_list<Read>& read,
                         const region_list<Written>& written) noexcept
{
  static constexpr char name[] = "row_gradients";
  checks.known(gradients.mode, name);
  checks.require(gradients.row_stride >= 0, code::bad_stride, name,
                 "a stride must not be negative");
  checks.require(!gradients || gradients.list != nullptr ||
                     span_bytes(num_rows, gradients.row_stride, extent.width, 8) >= 0,
                 code::bad_stride, name, "the memory spanned does not fit 64-bit offsets");
  if (!gradients) { return; }
  region like;  // any row's gradient: they differ in where they start
  for (int n = 0; checks.ok() && n < num_rows; ++n) {
    region_list<1> row;
    const region own = checks.output(gradients.row(n), extent, name);
    if (!own.empty()) { like = own; }
    row.add(own);
    checks.apart(read, row);
    checks.apart(written, row);
  }
  if (!checks.ok() || like.empty()) { return; }

  const sorted_starts starts{
      num_rows, [&](int n) { return reinterpret_cast<std::uintptr_t>(gradients.row(n).data); }};
  const region row_like =
      checks.input(const_matrix{rows.row(0), rows.position_stride}, extent, "rows");
  const sorted_starts row_starts{
      num_rows, [&](int n) { return reinterpret_cast<std::uintptr_t>(rows.row(n)); }};
  const bool apart = plainly_apart(starts, like);
  const bool apart_from_rows = plainly_apart(starts, like, row_starts, row_like);
  if (apart && apart_from_rows) { return; }
  for (int n = 0; checks.ok() && n < num_rows; ++n) {
    region_list<1> row;
    row.add(checks.output(gradients.row(n), extent, name));
    if (!apart_from_rows) { checks.apart_from_rows(row, rows, 0, num_rows, extent); }
    // Strided rows are translates of row 0, so comparing with it is enough.
    const int last = gradients.list != nullptr ? n : (std::min)(n, 1);
    for (int m = 0; !apart && checks.ok() && m < last; ++m) {
      const region other = checks.output(gradients.row(m), extent, name);
      for (const region& own : row) {
        checks.require(!overlap(own, other), code::aliasing, name, "two row gradients overlap");
      }
    }
  }
}

}  // namespace detail
MHAR_NAMESPACE_END
