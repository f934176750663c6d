// SPDX-License-Identifier: Apache-2.0
//! The reference against plain loops, over random calls with any options; in double they agree to
//! its rounding, and in float the loops keep the tolerances that every backend is held to.
#include "naive.hpp"

#include "support/call_case.hpp"

#include <doctest/doctest.h>

using namespace mhar_test;

namespace {

constexpr int num_cases = 200;

template <class Real, class T>
void check_against_loops(std::uint64_t stream)
{
  random_inputs random{stream};
  for (int i = 0; i < num_cases; ++i) {
    call_case<T> data{random_options<T>(random), random};
    naive_route<Real>(data.forward(host_memory{}).problem);
    CHECK_PASSES(data.check_forward());
    naive_route_gradient<Real>(data.backward(host_memory{}).problem);
    CHECK_PASSES(data.check_backward());
  }
}

}  // namespace

TEST_CASE("reference: equals plain loops in double for random calls of double rows")
{
  check_against_loops<double, double>(101);
}

TEST_CASE("reference: equals plain loops in double for random calls of narrow rows")
{
  check_against_loops<double, mhar::bfloat16>(102);
  check_against_loops<double, mhar::float16>(103);
  check_against_loops<double, float>(104);
}

TEST_CASE("reference: equals plain loops at widths that suit no vector")
{
  constexpr int widths[][2] = {{1, 1},     {7, 1},     {7, 7},     {80, 8},    {96, 32},
                               {100, 4},   {100, 10},  {111, 3},   {769, 1},   {1200, 8},
                               {1280, 20}, {3584, 28}, {7168, 56}, {12288, 96}};
  random_inputs random{108};
  for (const auto& [width, num_heads] : widths) {
    call_options<mhar::bfloat16> options;
    options.extent = {7, width, num_heads, 0};
    options.num_rows = 3;
    call_case<mhar::bfloat16> data{options, random};
    naive_route<double>(data.forward(host_memory{}).problem);
    CHECK_PASSES(data.check_forward());
    naive_route_gradient<double>(data.backward(host_memory{}).problem);
    CHECK_PASSES(data.check_backward());
  }
}

TEST_CASE("tolerances: plain loops in float keep them")
{
  check_against_loops<float, mhar::bfloat16>(105);
  check_against_loops<float, mhar::float16>(106);
  check_against_loops<float, float>(107);
}
