// SPDX-License-Identifier: Apache-2.0
//! The one table of tolerances, and the comparison that every test uses: |actual - expected| <= absolute + relative*|expected|.
#pragma once

#include <mhar/types/element.hpp>

#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>

namespace mhar_test {

struct tolerance
{
  double relative = 0;
  double absolute = 0;
};

//! What a correct result of this type may differ from the double reference by.
constexpr tolerance tolerance_of(mhar::element type) noexcept
{
  switch (type) {
    case mhar::element::bfloat16: return {1.6e-2, 1e-2};
    case mhar::element::float16: return {2e-3, 1e-3};
    case mhar::element::float32: return {1e-5, 1e-6};
    default: return {1e-12, 1e-13};
  }
}
template <class T>
constexpr tolerance tolerance_of() noexcept
{
  return tolerance_of(mhar::element_of<T>::value);
}

//! Equal infinities are close, and two NaN are; a NaN is close to nothing else.
inline bool close(double actual, double expected, tolerance allowed)
{
  if (std::isnan(expected) || std::isnan(actual)) {
    return std::isnan(expected) && std::isnan(actual);
  }
  if (actual == expected) { return true; }
  return std::abs(actual - expected) <= allowed.absolute + allowed.relative * std::abs(expected);
}

//! The outcome of comparing two arrays, for CHECK_MESSAGE(result.ok, result.text).
struct comparison
{
  bool ok = true;
  std::string text;  //!< the first mismatches
};

template <class Actual, class Expected>
comparison compare(const Actual* actual, const Expected* expected, std::int64_t count,
                   tolerance allowed)
{
  constexpr std::int64_t listed = 5;
  std::int64_t wrong = 0;
  std::ostringstream text;
  text.precision(9);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto got = mhar::widen<double>(actual[i]);
    const auto wanted = mhar::widen<double>(expected[i]);
    if (close(got, wanted, allowed)) { continue; }
    if (wrong < listed) { text << "[" << i << "] is " << got << ", expected " << wanted << "\n"; }
    ++wrong;
  }
  text << wrong << " of " << count << " elements differ";
  return {wrong == 0, text.str()};
}

}  // namespace mhar_test
