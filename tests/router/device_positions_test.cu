// SPDX-License-Identifier: Apache-2.0
//! Sweeps over so many positions that a block of the fast kernels walks over several: the bits of
//! each do not depend on the others, and parameters' gradients are the sums over two parts.
#include "device_access.cuh"
#include "random_sweep.hpp"
#include "sweep_run.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace {

using mhar::bfloat16;
using mhar::float16;
using device = mhar::device::backend;
using mhar_test::sweep_results;

//! Head widths of every family of kernels, and one that has none.
constexpr int head_widths[] = {64, 128, 160, 256, 512, 40};

mhar_test::sweep_options many_positions(mhar_test::random_inputs& random)
{
  mhar_test::sweep_options options = mhar_test::random_options(random);
  options.bias = false;  // which only plain kernels know
  const int heads = static_cast<int>(random.integer(1, 8));
  const std::int64_t width = heads * head_widths[random.integer(0, 5)];
  const std::int64_t most = std::min<std::int64_t>(2'000'000 / width, 6000);
  options.extent = {random.integer(most / 2, most), width, heads};
  return options;
}

//! Rows lie where fast kernels read them: at equal, aligned distances.
template <class T>
mhar_test::run_choices aligned_choices(const mhar_test::sweep_options& options,
                                       mhar_test::random_inputs& random)
{
  mhar_test::run_choices choices = mhar_test::random_choices<T>(options.schedule, random);
  choices.rows = mhar::row_home::block;
  choices.narrow_gradients = random.integer(0, 1) == 1;
  choices.narrow_outputs = !options.output_norm && random.integer(0, 1) == 1;
  return choices;
}

template <class T>
sweep_results results_of(const mhar_test::sweep_case<T>& data,
                         const mhar_test::run_choices& choices)
{
  mhar_test::sweep_run<device, T> run{data, choices};
  run.forward();
  return run.backward();
}

void check_same_bits(const std::string& name, const sweep_results& whole,
                     const sweep_results& first, const sweep_results& second)
{
  for (std::size_t i = 0; i < whole.at(name).size(); ++i) {
    std::vector<double> parts = first.at(name)[i];
    const std::vector<double>& rest = second.at(name)[i];
    parts.insert(parts.end(), rest.begin(), rest.end());
    const std::vector<double>& all = whole.at(name)[i];
    REQUIRE(parts.size() == all.size());
    const auto apart = std::mismatch(all.begin(), all.end(), parts.begin());
    const bool same = apart.first == all.end();
    CHECK_MESSAGE(same, name << " " << i << " differs from element " << apart.first - all.begin());
  }
}

void check_sums(const std::string& name, const sweep_results& whole, const sweep_results& first,
                const sweep_results& second)
{
  double largest = 0;
  double worst = 0;
  for (std::size_t i = 0; i < whole.at(name).size(); ++i) {
    const std::vector<double>& all = whole.at(name)[i];
    for (std::size_t k = 0; k < all.size(); ++k) {
      const double sum = first.at(name)[i][k] + second.at(name)[i][k];
      if (std::isfinite(sum)) { largest = std::max(largest, std::abs(sum)); }
      const double error = std::abs(all[k] - sum);
      worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
    }
  }
  CHECK_MESSAGE(worst <= 2e-3 * largest, name << " is off by " << worst << " of " << largest);
}

TEST_CASE_TEMPLATE("device sweeps over many positions: each has the bits that it has among few", T,
                   bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_inputs random{530};
  for (int round = 0; round < mhar_test::number_of_calls(12); ++round) {
    const mhar_test::sweep_options options = many_positions(random);
    const mhar_test::run_choices choices = aligned_choices<T>(options, random);
    const std::int64_t positions = options.extent.num_positions;
    const std::int64_t few = random.integer(1, random.integer(0, 1) == 1 ? 40 : positions - 1);
    const std::string text = mhar_test::described(options, choices);
    CAPTURE(text);
    CAPTURE(few);
    const mhar_test::sweep_case<T> data{options, 531 + static_cast<std::uint64_t>(round)};
    const sweep_results whole = results_of(data, choices);
    const mhar_test::sweep_case<T> beginning = data.positions(0, few);
    const mhar_test::sweep_case<T> rest = data.positions(few, positions - few);
    const sweep_results first = results_of(beginning, choices);
    const sweep_results second = results_of(rest, choices);
    for (const auto& result : whole) {
      const std::string& name = result.first;
      const bool is_sum = name == "query" || name == "norm_weight" || name == "null_source" ||
                          name == "gate" || name == "bias" || name == "output_weight";
      (is_sum ? check_sums : check_same_bits)(name, whole, first, second);
    }
  }
}

}  // namespace
