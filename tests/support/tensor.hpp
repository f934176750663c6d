// SPDX-License-Identifier: Apache-2.0
//! A guarded array of a run-time element type that knows where its elements lie: rows of positions
//! of a width, with gaps between them that nobody may read or write.
#pragma once

#include "support/guarded.hpp"

#include <mhar/types/element.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

namespace mhar_test {

//! Where row n of position p starts, in elements: row_start[n] + p * position_stride.
struct placement
{
  std::vector<std::int64_t> row_start = {0};
  std::int64_t num_positions = 1;
  std::int64_t position_stride = 0;
  std::int64_t width = 0;

  [[nodiscard]] std::int64_t num_rows() const
  {
    return static_cast<std::int64_t>(row_start.size());
  }
  [[nodiscard]] std::int64_t at(std::int64_t row, std::int64_t position) const
  {
    return row_start[static_cast<std::size_t>(row)] + position * position_stride;
  }
  //! Elements up to and including the last.
  [[nodiscard]] std::int64_t span() const
  {
    if (num_positions == 0 || row_start.empty()) { return 0; }
    const std::int64_t last = *std::max_element(row_start.begin(), row_start.end());
    return last + (num_positions - 1) * position_stride + width;
  }
};

//! Contiguous values, such as a parameter.
inline placement flat(std::int64_t count) { return {{0}, 1, count, count}; }

//! A [P, width] matrix whose positions are `gap` elements apart.
inline placement matrix_of(std::int64_t num_positions, std::int64_t width, std::int64_t gap = 0)
{
  return {{0}, num_positions, width + gap, width};
}

class tensor
{
public:
  //! Absent: no memory, and a null pointer wherever it goes.
  tensor() = default;
  tensor(mhar::element type, placement where, std::int64_t offset = 0)
      : type_{type}, where_{std::move(where)}, memory_{allocate(type, where_.span(), offset)}
  {
  }

  [[nodiscard]] explicit operator bool() const noexcept { return memory_.index() != 0; }
  [[nodiscard]] mhar::element type() const noexcept { return type_; }
  [[nodiscard]] const placement& where() const noexcept { return where_; }
  [[nodiscard]] void* data()
  {
    return visit([](auto& memory) -> void* { return memory.data(); });
  }
  [[nodiscard]] unsigned char* storage()
  {
    return visit([](auto& memory) { return memory.storage(); });
  }
  [[nodiscard]] std::size_t storage_bytes()
  {
    return visit([](auto& memory) { return memory.storage_bytes(); });
  }

  [[nodiscard]] double get(std::int64_t row, std::int64_t position, std::int64_t column)
  {
    return mhar::load<double>(data(), type_, where_.at(row, position) + column);
  }
  void set(std::int64_t row, std::int64_t position, std::int64_t column, double value)
  {
    mhar::store(data(), type_, where_.at(row, position) + column, value);
  }

  //! Calls visitor(row, position, column) for every element.
  template <class Visitor>
  void for_each(Visitor visitor) const
  {
    for (std::int64_t row = 0; *this && row < where_.num_rows(); ++row) {
      for (std::int64_t position = 0; position < where_.num_positions; ++position) {
        for (std::int64_t column = 0; column < where_.width; ++column) {
          visitor(row, position, column);
        }
      }
    }
  }

  //! Nothing was written around the elements or in the gaps between them.
  [[nodiscard]] bool surroundings_intact()
  {
    if (!*this) { return true; }
    std::vector<bool> element(static_cast<std::size_t>(where_.span()), false);
    for_each([&](std::int64_t row, std::int64_t position, std::int64_t column) {
      element[static_cast<std::size_t>(where_.at(row, position) + column)] = true;
    });
    const auto size = static_cast<std::size_t>(mhar::size_of(type_));
    const auto* const first = static_cast<const unsigned char*>(data());
    for (std::size_t i = 0; i < element.size(); ++i) {
      if (!element[i] && !all_poison(first + i * size, size)) { return false; }
    }
    return visit([](auto& memory) { return memory.guards_intact(); });
  }

private:
  using variant = std::variant<std::monostate, guarded<mhar::bfloat16>, guarded<mhar::float16>,
                               guarded<float>, guarded<double>>;

  static variant allocate(mhar::element type, std::int64_t count, std::int64_t offset)
  {
    switch (type) {
      case mhar::element::bfloat16: return guarded<mhar::bfloat16>{count, offset};
      case mhar::element::float16: return guarded<mhar::float16>{count, offset};
      case mhar::element::float32: return guarded<float>{count, offset};
      default: return guarded<double>{count, offset};
    }
  }

  //! The visitor's result for present memory, else a zero of its type.
  template <class Visitor>
  auto visit(Visitor visitor) -> decltype(visitor(std::declval<guarded<float>&>()))
  {
    using result = decltype(visitor(std::declval<guarded<float>&>()));
    return std::visit(
        [&](auto& memory) -> result {
          if constexpr (std::is_same_v<std::decay_t<decltype(memory)>, std::monostate>) {
            return result{};
          }
          else {
            return visitor(memory);
          }
        },
        memory_);
  }

  mhar::element type_ = mhar::element::float32;
  placement where_;
  variant memory_;
};

}  // namespace mhar_test
