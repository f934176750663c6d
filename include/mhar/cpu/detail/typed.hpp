// SPDX-License-Identifier: Apache-2.0
//! Arrays and matrices whose element type is known at run time: the type is looked at once per row, not per element.
#pragma once

#include <mhar/cpu/detail/lanes.hpp>
#include <mhar/types/view.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! A type as a value.
template <class T>
struct type_tag
{
  using type = T;
};

//! Calls visit with the type_tag of an element.
template <class Visit>
void with_type(element type, const Visit& visit)
{
  switch (type) {
    case element::bfloat16: visit(type_tag<bfloat16>{}); break;
    case element::float16: visit(type_tag<float16>{}); break;
    case element::float32: visit(type_tag<float>{}); break;
    default: visit(type_tag<double>{}); break;
  }
}

//! Calls visit with the mode as a constant.
template <class Visit>
void with_mode(update mode, const Visit& visit)
{
  if (mode == update::store) { visit(std::integral_constant<update, update::store>{}); }
  else {
    visit(std::integral_constant<update, update::accumulate>{});
  }
}

//! out = the elements [first, first + count) of a typed array.
template <class Accumulate>
void read(Accumulate* out, const void* data, element type, std::int64_t first,
          std::int64_t count) noexcept
{
  with_type(type, [&](auto tag) {
    const auto* const from = static_cast<const typename decltype(tag)::type*>(data) + first;
    for_each_block<Accumulate>(count, [&](std::int64_t k, auto part) {
      lanes<Accumulate> values;
      load<Accumulate>(values, from + k, part);
      store<Accumulate>(out + k, values, part);
    });
  });
}

//! Stores or adds `values` to the elements [first, first + count) of a typed array, rounding once.
template <class Accumulate>
void write(void* data, element type, update mode, std::int64_t first, const Accumulate* values,
           std::int64_t count) noexcept
{
  with_type(type, [&](auto tag) {
    auto* const to = static_cast<typename decltype(tag)::type*>(data) + first;
    const auto write_all = [&](auto how) {
      for_each_block<Accumulate>(count, [&](std::int64_t k, auto part) {
        lanes<Accumulate> block;
        load<Accumulate>(block, values + k, part);
        write_lanes<decltype(how)::value, Accumulate>(to + k, block, part);
      });
    };
    with_mode(mode, write_all);
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
