// SPDX-License-Identifier: Apache-2.0
//! Sweeps on the CPU: any tree of passes gives what every call alone gives.
#include "cpu/sweep_case.hpp"

using namespace mhar_test;

namespace {

template <class T>
sweep_options<T> random_sweep(random_inputs& random)
{
  static constexpr int widths[] = {1, 3, 5, 16, 64, 160};
  const auto coin = [&] { return random.integer(0, 1) == 1; };
  sweep_options<T> options;
  // At least 16 columns: an output norm over few magnifies the rounding of what is saved without bound.
  do {
    options.extent.num_heads = static_cast<int>(random.integer(1, 8));
    options.extent.width = options.extent.num_heads * widths[random.integer(0, 5)];
  } while (options.extent.width < 16);
  options.extent.num_positions = random.integer(1, options.extent.width > 100 ? 9 : 40);
  options.num_calls = static_cast<int>(random.integer(1, 9));
  options.null_source = coin();
  options.bias = coin();
  options.gate = coin();
  options.partial = coin();
  options.private_rows = coin();
  options.norm = coin() ? mhar::output_norm::rms : mhar::output_norm::none;
  options.rounding = coin() ? mhar::key_rounding::storage : mhar::key_rounding::none;
  if (coin()) { options.states = mhar::element_of<T>::value; }
  options.token_major = coin();
  options.dots_in_gather = coin();
  return options;
}

template <class T>
void check_random_sweeps(std::uint64_t stream)
{
  random_inputs random{stream};
  for (int i = 0; i < 60; ++i) {
    const sweep_options<T> options = random_sweep<T>(random);
    CAPTURE(options.extent.num_positions);
    CAPTURE(options.extent.width);
    CAPTURE(options.extent.num_heads);
    CAPTURE(options.num_calls);
    CAPTURE(options.null_source);
    CAPTURE(options.bias);
    CAPTURE(options.gate);
    CAPTURE(options.partial);
    CAPTURE(options.private_rows);
    CAPTURE(static_cast<int>(options.norm));
    CAPTURE(static_cast<int>(options.rounding));
    CAPTURE(static_cast<int>(options.states));
    CAPTURE(options.token_major);
    CAPTURE(options.dots_in_gather);
    sweep_case<T> data{options, random};
    data.forward(random);
    data.backward(random);
    data.check_against_reference();
  }
}

}  // namespace

TEST_CASE("cpu: a sweep by random trees of passes equals its calls one by one")
{
  check_random_sweeps<float>(211);
  check_random_sweeps<double>(212);
  check_random_sweeps<mhar::bfloat16>(213);
  check_random_sweeps<mhar::float16>(214);
}
