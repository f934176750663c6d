// SPDX-License-Identifier: Apache-2.0
//! What the verbs of the naive backend have in common: scores, inverse rms, dot products per head,
//! elements of any type.
#pragma once

#include <mhar/types/sweep.hpp>

#include <cmath>
#include <cstdint>

namespace mhar_test {

template <class Real>
Real element_or(const mhar::const_array& values, std::int64_t i, Real absent)
{
  return values ? mhar::load<Real>(values.data, values.type, i) : absent;
}

template <class Real>
Real element_of_matrix(const mhar::const_matrix& values, std::int64_t p, std::int64_t i)
{
  return mhar::load<Real>(values.data, values.type, p * values.position_stride + i);
}

template <class Real>
void put(void* data, mhar::element type, mhar::update mode, std::int64_t index, Real value)
{
  if (data == nullptr) { return; }
  const Real before = mode == mhar::update::accumulate ? mhar::load<Real>(data, type, index) : 0;
  mhar::store(data, type, index, before + value);
}

template <class Real>
void put(const mhar::matrix& values, std::int64_t p, std::int64_t i, Real value)
{
  put(values.data, values.type, values.mode, p * values.position_stride + i, value);
}

//! Sums in double: squares of finite floats do not overflow.
template <class T>
mhar::accumulate_t<T> inverse_rms(const T* row, std::int64_t width, std::int64_t full_width,
                                  mhar::accumulate_t<T> eps)
{
  double sum = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    const auto x = mhar::widen<double>(row[i]);
    sum += x * x;
  }
  return static_cast<mhar::accumulate_t<T>>(
      1 / std::sqrt(sum / static_cast<double>(full_width) + static_cast<double>(eps)));
}

//! Which key meets the query: as the site rounds it, or the exact one that ds and c are made with.
enum class key
{
  stored,
  exact
};

//! r*s, rounded to T if that is asked for. A null source is held in the accumulation type, but
//! rounded as a row is.
template <class T, class Source>
mhar::accumulate_t<T> key_element(mhar::key_rounding rounding, key which, Source s,
                                  mhar::accumulate_t<T> r)
{
  using real = mhar::accumulate_t<T>;
  const real value = mhar::widen<real>(s) * r;
  const bool rounded = which == key::stored && rounding == mhar::key_rounding::storage;
  return rounded ? mhar::widen<real>(mhar::round_to<T>(value)) : value;
}

//! u of one source and head.
template <class T, class Source>
mhar::accumulate_t<T> score(const mhar::folded_sites<mhar::accumulate_t<T>>& sites, int call,
                            const Source* source, mhar::accumulate_t<T> r, int h,
                            const mhar::shape& extent, key which)
{
  const std::int64_t head_width = extent.head_width();
  mhar::accumulate_t<T> sum = 0;
  for (std::int64_t i = h * head_width; i < (h + 1) * head_width; ++i) {
    sum +=
        sites.query[call * extent.width + i] * key_element<T>(sites.rounding, which, source[i], r);
  }
  return sum;
}

//! <a_h, b_h> of every head.
template <class Real, class A, class B>
void dots(const mhar::shape& extent, const A* a, const B* b, Real* result)
{
  const std::int64_t head_width = extent.head_width();
  for (int h = 0; h < extent.num_heads; ++h) {
    Real sum = 0;
    for (std::int64_t i = h * head_width; i < (h + 1) * head_width; ++i) {
      sum += mhar::widen<Real>(a[i]) * mhar::widen<Real>(b[i]);
    }
    result[h] = sum;
  }
}

}  // namespace mhar_test
