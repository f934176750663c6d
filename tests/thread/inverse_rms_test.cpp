// SPDX-License-Identifier: Apache-2.0
//! The inverse rms of rows from nothing to the largest finite number.
#include "support/random.hpp"
#include "support/tolerance.hpp"

#include <mhar/thread/inverse_rms.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

using namespace mhar_test;
using mhar::thread::inverse_rms;
using mhar::thread::overflow_scale;
using mhar::thread::overflowed;
using mhar::thread::scaled_inverse_rms;

namespace {

//! As the header says to.
template <class Real>
Real inverse_rms_of(const std::vector<Real>& row, Real eps)
{
  const auto sum = [&](Real unit) {
    // In runs of 64, because one long run loses more than the tolerance.
    Real squares = 0;
    for (std::size_t first = 0; first < row.size(); first += 64) {
      Real run = 0;
      for (std::size_t i = first; i < std::min(row.size(), first + 64); ++i) {
        run += (unit * row[i]) * (unit * row[i]);
      }
      squares += run;
    }
    return squares;
  };
  const Real width = static_cast<Real>(row.size());
  const Real plain = sum(1);
  if (!overflowed(plain)) { return inverse_rms(plain, width, eps); }
  return scaled_inverse_rms(sum(overflow_scale<Real>), width);
}

}  // namespace

TEST_CASE_TEMPLATE("inverse_rms: equals its formula", Real, float, double)
{
  random_inputs random{211};
  for (int i = 0; i < 100; ++i) {
    const auto row =
        random.vector<Real>(random.integer(1, 300), std::exp2(random.uniform(-20, 20)));
    double squares = 0;
    for (const Real s : row) { squares += static_cast<double>(s) * static_cast<double>(s); }
    const double expected = 1 / std::sqrt(squares / static_cast<double>(row.size()) + 1e-5);
    CHECK(inverse_rms_of(row, Real(1e-5)) ==
          doctest::Approx(expected).epsilon(tolerance_of<Real>().relative));
  }
}

TEST_CASE_TEMPLATE("inverse_rms: a row of zeros gives eps^-1/2", Real, float, double)
{
  CHECK(static_cast<double>(inverse_rms_of(std::vector<Real>(7), Real(1e-6))) ==
        doctest::Approx(1000).epsilon(1e-6));
}

TEST_CASE_TEMPLATE("inverse_rms: right up to the largest finite number", Real, float, double)
{
  const Real largest = std::numeric_limits<Real>::max();
  for (const int width : {1, 2, 512, 7168}) {
    for (Real size = 1; size < largest / 1000; size *= 1000) {
      const Real r = inverse_rms_of(std::vector<Real>(static_cast<std::size_t>(width), size),
                                    std::numeric_limits<Real>::min());
      CHECK(static_cast<double>(r * size) ==
            doctest::Approx(1).epsilon(tolerance_of<Real>().relative));
    }
    const Real r = inverse_rms_of(std::vector<Real>(static_cast<std::size_t>(width), largest),
                                  std::numeric_limits<Real>::min());
    CHECK(static_cast<double>(r * largest) ==
          doctest::Approx(1).epsilon(tolerance_of<Real>().relative));
  }
}

TEST_CASE_TEMPLATE("inverse_rms: an infinite element gives 0", Real, float, double)
{
  const Real r =
      inverse_rms_of(std::vector<Real>{1, std::numeric_limits<Real>::infinity()}, Real(1));
  CHECK(r == 0);
}
