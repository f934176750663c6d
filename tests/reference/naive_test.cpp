// SPDX-License-Identifier: Apache-2.0
//! The reference against plain loops, over random calls with any options; in double they agree to its
//! rounding, and in float the loops keep the tolerances that every backend is held to.
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

TEST_CASE("tolerances: plain loops in float keep them")
{
  check_against_loops<float, mhar::bfloat16>(105);
  check_against_loops<float, mhar::float16>(106);
  check_against_loops<float, float>(107);
}
