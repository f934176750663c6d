// SPDX-License-Identifier: Apache-2.0
//! Stored arrays as numbers and back: every element type is read into double, and rounded once when
//! written.
#pragma once

#include <mhar/types/view.hpp>

#include <Eigen/Core>

MHAR_NAMESPACE_BEGIN
namespace reference {

//! One value per column of the width, per head, or per source.
using vector = Eigen::Array<double, 1, Eigen::Dynamic>;
//! Sources x width, or sources x heads.
using table = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline vector read(const void* data, element type, std::int64_t first, std::int64_t count)
{
  vector values(count);
  for (std::int64_t i = 0; i < count; ++i) { values(i) = load<double>(data, type, first + i); }
  return values;
}

//! A parameter; `absent` stands for every element of one that is not given.
inline vector read(const const_array& values, std::int64_t count, double absent)
{
  return values ? read(values.data, values.type, 0, count) : vector::Constant(count, absent);
}

//! One position of a [P, width] matrix.
inline vector read(const const_matrix& values, std::int64_t position, std::int64_t width)
{
  return read(values.data, values.type, position * values.position_stride, width);
}

//! Stores or adds `values`, element `first` onwards. An absent output is skipped.
inline void write(void* data, element type, std::int64_t first, update mode, const vector& values)
{
  if (data == nullptr) { return; }
  for (std::int64_t i = 0; i < values.size(); ++i) {
    const double before = mode == update::accumulate ? load<double>(data, type, first + i) : 0.0;
    // Without the condition a stored -0 would become +0.
    store(data, type, first + i, mode == update::accumulate ? before + values(i) : values(i));
  }
}
inline void write(const array& output, const vector& values)
{
  write(output.data, output.type, 0, output.mode, values);
}
inline void write(const matrix& output, std::int64_t position, const vector& values)
{
  write(output.data, output.type, position * output.position_stride, output.mode, values);
}

}  // namespace reference
MHAR_NAMESPACE_END
