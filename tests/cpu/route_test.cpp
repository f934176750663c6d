// SPDX-License-Identifier: Apache-2.0
//! route and route_gradient on the CPU against the reference: random calls, and the product of all options.
#include "cpu/cpu_runs.hpp"

using namespace mhar_test;

namespace {

template <class T>
void check_random_calls(std::uint64_t stream)
{
  random_inputs random{stream};
  for (int i = 0; i < 300; ++i) { check_call<T>(random_options<T>(random), random); }
}

//! null x partial x gate x bias x output norm, for one extent.
template <class T>
void check_all_options(const mhar::shape& extent, int num_rows, random_inputs& random)
{
  for (int bits = 0; bits < 32; ++bits) {
    call_options<T> options;
    options.extent = extent;
    options.num_rows = num_rows;
    options.null_source = (bits & 1) != 0;
    options.partial = (bits & 2) != 0;
    options.gate = (bits & 4) != 0;
    options.bias = (bits & 8) != 0;
    options.norm = (bits & 16) != 0 ? mhar::output_norm::rms : mhar::output_norm::none;
    options.combined_upstream = random.integer(0, 1) == 1;
    options.given_lse = random.integer(0, 1) == 1;
    options.given_mix = random.integer(0, 1) == 1;
    options.given_combined = random.integer(0, 1) == 1;
    options.given_inverse_rms = random.integer(0, 1) == 1;
    if (options.num_sources() == 0) { continue; }
    check_call<T>(options, random);
  }
}

template <class T>
void check_option_product(std::uint64_t stream)
{
  random_inputs random{stream};
  for (const int num_heads : {1, 2, 3, 8}) {
    for (const int num_rows : {0, 1, 2, 9, 73}) {
      for (const int head_width : {1, 3, 5, 64, 160}) {
        // The product of the largest of all three says nothing new and takes most of the time.
        if (num_rows == 73 && num_heads * head_width > 200) { continue; }
        const mhar::shape extent{random.integer(1, 3), std::int64_t{num_heads} * head_width,
                                 num_heads, 0};
        check_all_options<T>(extent, num_rows, random);
      }
    }
  }
}

}  // namespace

TEST_CASE("cpu: random calls with any options equal the reference")
{
  check_random_calls<float>(201);
  check_random_calls<double>(202);
  check_random_calls<mhar::bfloat16>(203);
  check_random_calls<mhar::float16>(204);
}

TEST_CASE("cpu: every set of options at every number of heads and rows, float rows")
{
  check_option_product<float>(205);
}

TEST_CASE("cpu: every set of options at every number of heads and rows, bfloat16 rows")
{
  check_option_product<mhar::bfloat16>(206);
}

TEST_CASE("cpu: widths that suit no vector")
{
  struct width_and_heads
  {
    std::int64_t width;
    int num_heads;
  };
  constexpr width_and_heads shapes[] = {{1, 1},     {7, 1},     {7, 7},    {80, 8},  {96, 32},
                                        {100, 4},   {100, 10},  {111, 3},  {769, 1}, {1200, 8},
                                        {1280, 20}, {3584, 28}, {7168, 56}};
  random_inputs random{207};
  for (const width_and_heads& shape : shapes) {
    const auto check = [&](auto element) {
      call_options<decltype(element)> options;
      options.extent = {shape.width > 2000 ? 2 : 7, shape.width, shape.num_heads, 0};
      options.num_rows = 3;
      options.offset = random.integer(0, 1);
      check_call(options, random);
    };
    check(float{});
    check(mhar::bfloat16{});
    check(mhar::float16{});
  }
}
