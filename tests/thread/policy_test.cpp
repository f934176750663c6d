// SPDX-License-Identifier: Apache-2.0
//! What is tuned for a call is found by arithmetic that no valid call overflows: in constants, where an overflow does not compile.
#include <mhar/tuning/route.hpp>
#include <mhar/tuning/route_resident.hpp>

#include <doctest/doctest.h>

#include <limits>

namespace {

constexpr mhar::thread::width_tree tree = mhar::thread::make_width_tree({1, 256, 2}, 8);
constexpr mhar::tuning::route_device device{227 << 10, 228 << 10};
constexpr int most_rows = (1 << 30) - 1;

constexpr mhar::tuning::resident_policy resident(int num_rows)
{
  return mhar::tuning::resident_policy_selector{}(tree, num_rows, 256 * 2, device,
                                                  [](int, int) { return std::size_t{8192}; });
}
constexpr mhar::tuning::route_policy staged(int num_rows)
{
  return mhar::tuning::route_policy_selector{}({tree, num_rows, 256 * 2, 8192}, device);
}

}  // namespace

TEST_CASE("policy: any number of rows is cut without overflow")
{
  constexpr mhar::tuning::resident_policy few = resident(32);
  CHECK(few.chunks_per_thread > 0);
  constexpr mhar::tuning::resident_policy many = resident((std::numeric_limits<int>::max)());
  CHECK(many.chunks_per_thread == 0);
  constexpr mhar::tuning::route_policy batches = staged(most_rows);
  CHECK(batches.rows == 4);
}
