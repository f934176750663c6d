// SPDX-License-Identifier: Apache-2.0
//! The pieces that validation is written with: memory regions that know whether they overlap, and a list of checks that
//! remembers the first failure.
#pragma once

#include <mhar/status.hpp>
#include <mhar/types/options.hpp>
#include <mhar/types/shape.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>

MHAR_NAMESPACE_BEGIN
namespace detail {

//! Memory as `count` pieces of `bytes` bytes, `stride` bytes apart (0 for a single piece). Empty when there is no piece.
struct region
{
  const char* name = "";
  std::uintptr_t begin = 0;
  std::int64_t count = 0;
  std::int64_t stride = 0;
  std::int64_t bytes = 0;
  element type = element::float32;

  [[nodiscard]] constexpr bool empty() const noexcept
  {
    return begin == 0 || count == 0 || bytes == 0;
  }
  [[nodiscard]] constexpr std::uintptr_t end() const noexcept
  {
    return begin + static_cast<std::uintptr_t>((count - 1) * stride + bytes);
  }
  [[nodiscard]] constexpr bool same_as(const region& other) const noexcept
  {
    return begin == other.begin && count == other.count && stride == other.stride &&
           bytes == other.bytes && type == other.type;
  }
};

//! Whether two regions share a byte. Exact for regions of one stride (columns of one matrix), else by their outer bounds.
[[nodiscard]] constexpr bool overlap(const region& a, const region& b) noexcept
{
  if (a.empty() || b.empty() || a.end() <= b.begin || b.end() <= a.begin) { return false; }
  if (a.stride != b.stride || a.stride <= 0 || a.bytes > a.stride || b.bytes > b.stride) {
    return true;
  }
  const auto stride = static_cast<std::uintptr_t>(a.stride);
  const std::uintptr_t ahead = b.begin >= a.begin
                                   ? (b.begin - a.begin) % stride
                                   : (stride - (a.begin - b.begin) % stride) % stride;
  const bool apart = ahead >= static_cast<std::uintptr_t>(a.bytes) &&
                     ahead + static_cast<std::uintptr_t>(b.bytes) <= stride;
  return !apart;
}

//! Bytes from the first to the end of the last of `count` pieces; -1 when the stride is negative or that does not fit 64 bits
//! with room to spare.
[[nodiscard]] constexpr std::int64_t span_bytes(std::int64_t count, std::int64_t stride,
                                                std::int64_t width,
                                                std::int64_t element_bytes) noexcept
{
  constexpr std::int64_t limit = std::int64_t{1} << 58;
  if (count <= 0) { return 0; }
  if (stride < 0 || stride > limit || width > limit / element_bytes) { return -1; }
  if (stride > 0 && count - 1 > (limit / element_bytes - width) / stride) { return -1; }
  return ((count - 1) * stride + width) * element_bytes;
}

//! Rows, calls or slots at most: sums of a few counts, and numbers near one, fit an int.
inline constexpr std::int64_t max_count = std::int64_t{1} << 30;

//! Up to `Capacity` regions that belong together: the inputs or the outputs of a problem.
template <std::size_t Capacity>
class region_list
{
public:
  constexpr void add(const region& entry) noexcept
  {
    if (entry.empty()) { return; }
    MHAR_ASSERT(size_ < Capacity);
    entries_[size_++] = entry;
  }
  [[nodiscard]] constexpr const region* begin() const noexcept { return entries_; }
  [[nodiscard]] constexpr const region* end() const noexcept { return entries_ + size_; }

private:
  region entries_[Capacity] = {};
  std::size_t size_ = 0;
};

//! An input and an output, by their names' addresses, that may be the same memory.
struct exact_pair
{
  const char* input;
  const char* output;
};

//! Checks in the order they are made; the first that fails is the answer and the later ones are not looked at.
class checker
{
public:
  checker() = default;
  //! Every array that is looked at must lie apart from the workspace.
  explicit checker(const workspace_view& workspace) noexcept
  {
    constexpr std::size_t most = std::size_t{1} << 58;  // whatever a caller says: addresses end
    workspace_.begin = reinterpret_cast<std::uintptr_t>(workspace.data);
    workspace_.count = 1;
    workspace_.bytes = static_cast<std::int64_t>(workspace.bytes < most ? workspace.bytes : most);
  }

  [[nodiscard]] constexpr const status& answer() const noexcept { return answer_; }
  [[nodiscard]] constexpr bool ok() const noexcept { return answer_.ok(); }

  constexpr void require(bool condition, code failure, const char* argument,
                         const char* message) noexcept
  {
    if (answer_.ok() && !condition) { answer_ = status{failure, argument, message, 0}; }
  }

  constexpr void extent(const shape& extent) noexcept
  {
    require(extent.num_positions >= 0 && extent.num_positions <= std::int64_t{1} << 40,
            code::bad_shape, "extent.num_positions",
            "the number of positions must be between 0 and 2^40");
    require(extent.width >= 1 && extent.width <= std::int64_t{1} << 30, code::bad_shape,
            "extent.width", "the width must be between 1 and 2^30");
    require(!answer_.ok() || extent.num_positions <= (std::int64_t{1} << 58) / extent.width,
            code::bad_shape, "extent.num_positions",
            "positions times width must not exceed 2^58, so that offsets fit 64 bits");
    require(extent.num_heads >= 1, code::bad_shape, "extent.num_heads",
            "there must be at least one head");
    require(answer_.ok() ? extent.width % extent.num_heads == 0 : true, code::bad_shape,
            "extent.num_heads", "the number of heads must divide the width");
    require(extent.norm_width == 0 ||
                (extent.norm_width >= extent.width && extent.norm_width <= std::int64_t{1} << 30),
            code::bad_shape, "extent.norm_width",
            "the norm's width must be 0 or at least the width");
  }

  //! eps must be a positive normal number in the type that the arithmetic uses.
  template <class Accumulate>
  void epsilon(double eps, const char* argument) noexcept
  {
    require(std::isfinite(eps) &&
                eps >= static_cast<double>((std::numeric_limits<Accumulate>::min)()) &&
                eps <= static_cast<double>((std::numeric_limits<Accumulate>::max)()),
            code::bad_value, argument,
            "eps must be positive and finite in the type that arithmetic is done in");
  }

  //! A scale must be finite in the type that the arithmetic uses.
  template <class Accumulate>
  void scale(double factor, const char* argument) noexcept
  {
    require(std::abs(factor) <= static_cast<double>((std::numeric_limits<Accumulate>::max)()),
            code::bad_value, argument,
            "the scale must be finite in the type that arithmetic is done in");
  }

  constexpr void stored(update mode, const char* argument) noexcept
  {
    require(mode == update::store, code::bad_value, argument,
            "a forward output is stored, it cannot be accumulated");
  }

  constexpr void known(element type, const char* argument) noexcept
  {
    require(type == element::bfloat16 || type == element::float16 || type == element::float32 ||
                type == element::float64,
            code::bad_value, argument, "unknown element type");
  }

  constexpr void known(update mode, const char* argument) noexcept
  {
    require(mode == update::store || mode == update::accumulate, code::bad_value, argument,
            "unknown update mode");
  }

  //! `count` pieces of `width` elements at `data`; an input may repeat them (stride 0), an output may not.
  [[nodiscard]] region pieces(const void* data, element type, std::int64_t count,
                              std::int64_t stride, std::int64_t width, const char* argument,
                              bool written) noexcept
  {
    known(type, argument);
    if (data == nullptr || !ok()) { return {argument}; }
    const std::int64_t size = size_of(type);
    require(stride >= 0, code::bad_stride, argument, "a stride must not be negative");
    require(!written || count <= 1 || stride >= width, code::bad_stride, argument,
            "two positions of an output would share elements: the position stride is smaller than "
            "the width");
    require(span_bytes(count, stride, width, size) >= 0, code::bad_stride, argument,
            "the memory spanned does not fit 64-bit offsets");
    require(reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size) == 0,
            code::bad_alignment, argument, "the pointer is not a multiple of its element's size");
    if (!ok()) { return {argument}; }
    const std::int64_t step = count > 1 ? stride * size : 0;
    const region all{argument, reinterpret_cast<std::uintptr_t>(data), count, step, width * size,
                     type};
    require(!overlap(all, workspace_), code::aliasing, argument, "the workspace overlaps it");
    return all;
  }

  [[nodiscard]] region input(const const_matrix& view, const shape& extent,
                             const char* argument) noexcept
  {
    return pieces(view.data, view.type, extent.num_positions, view.position_stride, extent.width,
                  argument, false);
  }
  [[nodiscard]] region input(const const_array& view, std::int64_t size,
                             const char* argument) noexcept
  {
    return pieces(view.data, view.type, 1, 0, size, argument, false);
  }
  [[nodiscard]] region output(const matrix& view, const shape& extent,
                              const char* argument) noexcept
  {
    known(view.mode, argument);
    return pieces(view.data, view.type, extent.num_positions, view.position_stride, extent.width,
                  argument, true);
  }
  [[nodiscard]] region output(const array& view, std::int64_t size, const char* argument) noexcept
  {
    known(view.mode, argument);
    return pieces(view.data, view.type, 1, 0, size, argument, true);
  }
  //! `count` contiguous blocks of `size` accumulator values, `stride` values apart.
  template <class Accumulate>
  [[nodiscard]] region values(const Accumulate* data, std::int64_t count, std::int64_t stride,
                              std::int64_t size, const char* argument) noexcept
  {
    return pieces(data, element_of<Accumulate>::value, count, stride, size, argument, false);
  }

  //! Rows that are read: [first, first + count).
  template <class T>
  void source_rows(const const_rows<T>& view, int first, int count, const shape& extent,
                   const char* argument) noexcept
  {
    if (!ok() || count == 0 || extent.num_positions == 0) { return; }
    require(static_cast<bool>(view), code::missing_argument, argument, "the rows are required");
    require(view.row_stride >= 0, code::bad_stride, argument, "a stride must not be negative");
    require(view.list != nullptr ||
                span_bytes(first + std::int64_t{count}, view.row_stride, extent.width, 8) >= 0,
            code::bad_stride, argument, "the memory spanned does not fit 64-bit offsets");
    for (int n = first; ok() && n < first + count; ++n) {
      require(view.row(n) != nullptr, code::missing_argument, argument, "a listed row is null");
      static_cast<void>(input(const_matrix{view.row(n), view.position_stride}, extent, argument));
    }
  }

  //! No output may overlap one of the rows [first, first + count).
  template <class T, std::size_t Capacity>
  void apart_from_rows(const region_list<Capacity>& outputs, const const_rows<T>& view, int first,
                       int count, const shape& extent) noexcept
  {
    if (!ok() || count == 0 || extent.num_positions == 0) { return; }
    for (int n = first; n < first + count; ++n) {
      const region row = input(const_matrix{view.row(n), view.position_stride}, extent, "");
      for (const region& output : outputs) {
        require(!overlap(output, row), code::aliasing, output.name,
                "the output overlaps a source row");
      }
    }
  }

  //! No output may overlap an input or another output, but for the pairs that may coincide exactly.
  template <std::size_t Inputs, std::size_t Outputs>
  void apart(const region_list<Inputs>& inputs, const region_list<Outputs>& outputs,
             std::initializer_list<exact_pair> may_coincide = {}) noexcept
  {
    for (const region& output : outputs) {
      for (const region& input : inputs) {
        if (!overlap(output, input)) { continue; }
        bool exact = false;
        for (const exact_pair& pair : may_coincide) {
          exact = exact || (input.name == pair.input && output.name == pair.output);
        }
        require(exact && output.same_as(input), code::aliasing, output.name,
                "the output overlaps an input");
      }
      for (const region* other = outputs.begin(); other != &output; ++other) {
        require(!overlap(output, *other), code::aliasing, output.name,
                "the output overlaps another output");
      }
    }
  }

private:
  status answer_;
  region workspace_;
};

//! Whether counts and extents mean something. What sizes a workspace asks this first: a problem that validation will refuse needs
//! none, and arithmetic on its extents would give any number.
[[nodiscard]] constexpr bool has_sizes(const shape& extent, int num_rows = 0) noexcept
{
  checker checks;
  checks.extent(extent);
  return checks.ok() && num_rows >= 0;
}

}  // namespace detail
MHAR_NAMESPACE_END
