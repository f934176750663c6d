// SPDX-License-Identifier: Apache-2.0
//! Arrays and matrices whose element type is known at run time: the type is looked at once per row, not per element.
#pragma once

#include <mhar/cpu/detail/lanes.hpp>
#include <mhar/types/view.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! Calls visit with the data as a pointer of its own type.
template <class Visit>
void with_type(const void* data, element type, const Visit& visit)
{
  switch (type) {
    case element::bfloat16: visit(static_cast<const bfloat16*>(data)); break;
    case element::float16: visit(static_cast<const float16*>(data)); break;
    case element::float32: visit(static_cast<const float*>(data)); break;
    default: visit(static_cast<const double*>(data)); break;
  }
}
template <class Visit>
void with_type(void* data, element type, const Visit& visit)
{
  switch (type) {
    case element::bfloat16: visit(static_cast<bfloat16*>(data)); break;
    case element::float16: visit(static_cast<float16*>(data)); break;
    case element::float32: visit(static_cast<float*>(data)); break;
    default: visit(static_cast<double*>(data)); break;
  }
}

//! out = the elements [first, first + count) of a typed array.
template <class Accumulate>
void read(Accumulate* out, const void* data, element type, std::int64_t first,
          std::int64_t count) noexcept
{
  with_type(data, type, [&](const auto* from) {
    for_each_block<Accumulate>(count, [&](std::int64_t k, auto part) {
      lanes<Accumulate> values;
      load<Accumulate>(values, from + first + k, part);
      store<Accumulate>(out + k, values, part);
    });
  });
}

//! Stores or adds `values` to the elements [first, first + count) of a typed array, rounding once.
template <class Accumulate>
void write(void* data, element type, update mode, std::int64_t first, const Accumulate* values,
           std::int64_t count) noexcept
{
  with_type(data, type, [&](auto* to) {
    if (mode == update::accumulate && type == element::float64) {
      // A double destination keeps what it holds: added in double whatever the accumulation type.
      for (std::int64_t k = 0; k < count; ++k) {
        to[first + k] = round_to<std::decay_t<decltype(*to)>>(widen<double>(to[first + k]) +
                                                              static_cast<double>(values[k]));
      }
      return;
    }
    for_each_block<Accumulate>(count, [&](std::int64_t k, auto part) {
      lanes<Accumulate> sum;
      load<Accumulate>(sum, values + k, part);
      if (mode == update::accumulate) {
        lanes<Accumulate> old;
        load<Accumulate>(old, to + first + k, part);
        sum += old;
      }
      store<Accumulate>(to + first + k, sum, part);
    });
  });
}

//! One position of a matrix.
template <class Accumulate>
void read(Accumulate* out, const const_matrix& from, std::int64_t position,
          std::int64_t width) noexcept
{
  read(out, from.data, from.type, position * from.position_stride, width);
}
template <class Accumulate>
void write(const matrix& to, std::int64_t position, const Accumulate* values,
           std::int64_t width) noexcept
{
  write(to.data, to.type, to.mode, position * to.position_stride, values, width);
}

//! A whole parameter array.
template <class Accumulate>
void read(Accumulate* out, const const_array& from, std::int64_t count) noexcept
{
  read(out, from.data, from.type, 0, count);
}
template <class Accumulate>
void write(const array& to, const Accumulate* values, std::int64_t count) noexcept
{
  write(to.data, to.type, to.mode, 0, values, count);
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
