// SPDX-License-Identifier: Apache-2.0
//! The 16-bit storage types, bit by bit, against Eigen's; and arrays whose type is known at run
//! time only.
#include "support/random.hpp"

#include <mhar/types/element.hpp>
#include <mhar/types/view.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#if defined(__SSE2__)
#  include <xmmintrin.h>
#endif

using namespace mhar_test;

namespace {

template <class T>
struct eigen;
template <>
struct eigen<mhar::bfloat16>
{
  using type = Eigen::bfloat16;
};
template <>
struct eigen<mhar::float16>
{
  using type = Eigen::half;
};

template <class To, class From>
To bits_as(const From& from)
{
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

//! Both NaN, or the same bits.
bool same(float a, float b)
{
  return (std::isnan(a) && std::isnan(b)) || bits_as<std::uint32_t>(a) == bits_as<std::uint32_t>(b);
}

template <class T>
bool rounds_like_eigen(float value)
{
  const float ours = mhar::to_float(mhar::round_to<T>(value));
  const float theirs = static_cast<float>(static_cast<typename eigen<T>::type>(value));
  return same(ours, theirs);
}

}  // namespace

static_assert(sizeof(mhar::bfloat16) == 2 && alignof(mhar::bfloat16) == 2);
static_assert(sizeof(mhar::float16) == 2 && alignof(mhar::float16) == 2);
static_assert(std::is_trivially_copyable_v<mhar::bfloat16>);
static_assert(std::is_same_v<mhar::accumulate_t<mhar::bfloat16>, float>);
static_assert(std::is_same_v<mhar::accumulate_t<float>, float>);
static_assert(std::is_same_v<mhar::accumulate_t<double>, double>);
static_assert(mhar::size_of(mhar::element::float16) == 2 &&
              mhar::size_of(mhar::element::float64) == 8);

TEST_CASE_TEMPLATE("element: every 16-bit pattern widens as Eigen's does and rounds back to itself",
                   T, mhar::bfloat16, mhar::float16)
{
  for (std::uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const T stored{static_cast<std::uint16_t>(pattern)};
    const float wide = mhar::to_float(stored);
    const auto theirs = Eigen::numext::bit_cast<typename eigen<T>::type>(stored.bits);
    REQUIRE(same(wide, static_cast<float>(theirs)));
    REQUIRE(same(wide, static_cast<float>(mhar::widen<double>(stored))));
    if (std::isnan(wide)) {
      REQUIRE(std::isnan(mhar::to_float(mhar::round_to<T>(wide))));
      continue;
    }
    REQUIRE(mhar::round_to<T>(wide).bits == stored.bits);
  }
}

#if defined(__SSE2__)
TEST_CASE("element: float16 widens and rounds where a thread reads subnormal floats as 0")
{
  std::vector<float> widened;
  for (std::uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    widened.push_back(mhar::to_float(mhar::float16{static_cast<std::uint16_t>(pattern)}));
  }
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);  // flush to zero, denormals are zero
  std::vector<float> flushed;
  std::vector<std::uint16_t> rounded;
  for (std::uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    flushed.push_back(mhar::to_float(mhar::float16{static_cast<std::uint16_t>(pattern)}));
    rounded.push_back(mhar::round_to<mhar::float16>(widened[pattern]).bits);
  }
  _mm_setcsr(before);
  CHECK(std::memcmp(flushed.data(), widened.data(), sizeof(float) * widened.size()) == 0);
  for (std::uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    REQUIRE((std::isnan(widened[pattern]) || rounded[pattern] == pattern));
  }
}
#endif

TEST_CASE_TEMPLATE("element: rounding is to nearest even, at and beside every tie", T,
                   mhar::bfloat16, mhar::float16)
{
  const float infinity = std::numeric_limits<float>::infinity();
  for (std::uint32_t pattern = 0; pattern < 0x7fffu; ++pattern) {
    const float below = mhar::to_float(T{static_cast<std::uint16_t>(pattern)});
    const float above = mhar::to_float(T{static_cast<std::uint16_t>(pattern + 1)});
    if (!std::isfinite(below) || !std::isfinite(above)) { continue; }
    const float tie =
        static_cast<float>((static_cast<double>(below) + static_cast<double>(above)) / 2);
    for (const float value :
         {tie, std::nextafter(tie, infinity), std::nextafter(tie, -infinity), -tie}) {
      REQUIRE(rounds_like_eigen<T>(value));
    }
    const std::uint16_t even = static_cast<std::uint16_t>(pattern + (pattern & 1u));
    REQUIRE(mhar::round_to<T>(tie).bits == even);
  }
}

TEST_CASE_TEMPLATE("element: any float rounds as Eigen's does", T, mhar::bfloat16, mhar::float16)
{
  random_inputs random{301};
  for (int i = 0; i < 300000; ++i) {
    const auto pattern = static_cast<std::uint32_t>(random.integer(0, 0xffffffffLL));
    REQUIRE(rounds_like_eigen<T>(bits_as<float>(pattern)));
  }
}

TEST_CASE("element: overflow, NaN and signs of zero")
{
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(mhar::round_to<mhar::float16>(65519.0f).bits == 0x7bff);
  CHECK(mhar::round_to<mhar::float16>(65520.0f).bits == 0x7c00);
  CHECK(mhar::round_to<mhar::float16>(-infinity).bits == 0xfc00);
  CHECK(mhar::round_to<mhar::bfloat16>(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(mhar::round_to<mhar::bfloat16>(infinity).bits == 0x7f80);
  CHECK(mhar::round_to<mhar::bfloat16>(-0.0f).bits == 0x8000);
  CHECK(mhar::round_to<mhar::float16>(-0.0f).bits == 0x8000);
  // A payload in the lowest bits only would be cut off, and leave an infinity.
  const float quiet = bits_as<float>(std::uint32_t{0x7f800001});
  CHECK(std::isnan(mhar::to_float(mhar::round_to<mhar::bfloat16>(quiet))));
  CHECK(std::isnan(mhar::to_float(mhar::round_to<mhar::float16>(quiet))));
}

TEST_CASE("element: a double for a 16-bit type is rounded to float first")
{
  const double value = 1 + 0x1p-8 + 0x1p-40;  // just above a bfloat16 tie, and on it as a float
  CHECK(mhar::round_to<mhar::bfloat16>(value).bits == mhar::round_to<mhar::bfloat16>(1.0f).bits);
  CHECK(mhar::round_to<float>(1 + 0x1p-24) == 1.0f);
  CHECK(mhar::round_to<double>(1 + 0x1p-50) == 1 + 0x1p-50);
}

TEST_CASE_TEMPLATE("element: loads and stores by run-time type are those of the type", T,
                   mhar::bfloat16, mhar::float16, float, double)
{
  random_inputs random{302};
  constexpr mhar::element type = mhar::element_of<T>::value;
  CHECK(mhar::size_of(type) == sizeof(T));
  std::vector<T> values(9);
  for (std::int64_t i = 0; i < 9; ++i) {
    const double value = random.normal();
    mhar::store(values.data(), type, i, value);
    const T rounded = mhar::round_to<T>(value);
    CHECK(std::memcmp(&values[static_cast<std::size_t>(i)], &rounded, sizeof(T)) == 0);
    CHECK(mhar::load<double>(values.data(), type, i) == mhar::widen<double>(rounded));
  }
}

TEST_CASE("view: offsets past 2^31 elements are 64-bit")
{
  // Addresses only: nothing is read.
  const auto* const base = reinterpret_cast<const mhar::bfloat16*>(std::uintptr_t{1} << 40);
  const std::int64_t row_elements = std::int64_t{42000} * 7168;
  const auto distance = [](const void* to, const void* from) {
    return reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
  };
  const mhar::const_rows<mhar::bfloat16> rows = mhar::source_major(base, 42000, 7168);
  CHECK(distance(rows.row(8), base) == 2 * std::uintptr_t{2408448000});
  CHECK(distance(rows.at(8, 41999), base) ==
        2 * static_cast<std::uintptr_t>(9 * row_elements - 7168));

  const mhar::gradient_rows gradients{const_cast<mhar::bfloat16*>(base),
                                      mhar::element::bfloat16,
                                      row_elements,
                                      7168,
                                      nullptr,
                                      mhar::update::store};
  CHECK(distance(gradients.row(8).data, base) == 2 * std::uintptr_t{2408448000});
}

TEST_CASE("view: where there are no row gradients no row has one, whatever the strides")
{
  mhar::gradient_rows gradients;
  gradients.row_stride = gradients.position_stride = 640;
  CHECK_FALSE(static_cast<bool>(gradients.row(0)));
  CHECK_FALSE(static_cast<bool>(gradients.row(3)));
}
