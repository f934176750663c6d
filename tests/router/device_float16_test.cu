// SPDX-License-Identifier: Apache-2.0
//! Sweeps over rows of float16 whose numbers come close to the ends of its range: what the kernels
//! on tensor cores make of them is as exact as for others.
#include "device_access.cuh"
#include "sweep_bodies.hpp"

namespace {

using mhar::float16;
using device = mhar::device::backend;

//! What everything is scaled by, of numbers of about 1.
struct magnitudes
{
  const char* name;
  double rows;
  double upstream;
  double queries;
  double gate;
  double fourth_rows;  //!< every fourth row, besides
  double error;        //!< relative, of gradients
};

//! Of uneven columns every eighth is tiny in all rows and has queries that exceed float16. Their elements
//! are subnormal, 3e-7 where rows are small: tensor cores align those as if they were 2^-14, so a product
//! with a query of 2e5 loses up to 2^-37 of it, and a logit 30 times that, 4e-5: r is 30 there.
constexpr magnitudes all_magnitudes[] = {
    {"as they are", 1, 1, 1, 0.7, 1.0 / 30, 3e-5},
    {"large rows", 8e3, 1, 1, 0.7, 1.0 / 30, 3e-5},
    {"small rows", 2e-3, 1, 1, 0.7, 1.0 / 30, 3e-5},
    {"large upstream", 1, 5e3, 1, 0.7, 1.0 / 30, 3e-5},
    {"small upstream", 1, 1e-3, 1, 0.7, 1.0 / 30, 3e-5},
    {"small rows, large upstream", 1e-2, 2e3, 1, 0.7, 1.0 / 30, 3e-5},
    {"small queries", 1, 1, 1e-6, 0.7, 1.0 / 30, 3e-5},
    {"uneven columns", 1, 1, 1, 0.7, 1, 3e-5},
    {"uneven columns, small rows", 1, 1, 1, 0.7, 1.0 / 30, 1e-4},
    {"large gate", 1, 1, 1, 900, 1.0 / 30, 3e-5},
    {"small gate", 1, 1, 1, 1e-5, 1.0 / 30, 3e-5},
};

mhar_test::sweep_case<float16> data_of(const mhar_test::sweep_options& options,
                                       const magnitudes& scale)
{
  mhar_test::sweep_case<float16> data{options, 530};
  const auto multiply = [](auto& values, double factor) {
    for (auto& value : values) {
      using type = std::decay_t<decltype(value)>;
      value = mhar::round_to<type>(mhar::widen<double>(value) * factor);
    }
  };
  for (std::size_t n = 0; n < data.rows.size(); ++n) {
    multiply(data.rows[n], scale.rows * (n % 4 == 1 ? scale.fourth_rows : 1));
  }
  for (auto& values : data.dy) { multiply(values, scale.upstream); }
  for (auto& site : data.sites) { multiply(site.query, scale.queries); }
  if (std::string{scale.name}.find("uneven") == 0) {
    const auto multiply_some = [](auto& values, double factor) {
      for (std::size_t i = 0; i < values.size(); i += 8) {
        using type = std::decay_t<decltype(values[i])>;
        values[i] = mhar::round_to<type>(mhar::widen<double>(values[i]) * factor);
      }
    };
    for (auto& values : data.rows) { multiply_some(values, 1e-5); }
    for (auto& site : data.sites) { multiply_some(site.query, 2e5); }
  }
  return data;
}

//! How far, at most, stored gradients are from the wide ones, rounded: in parts of a row's size, but for
//! roundings that fall to the other side. Both are sums of products of two bfloat16 parts each, off by 2^-18 to
//! 2^-16 of a term, and terms that cancel reach 25 times that size. The bound of 2e-4 stands above what this
//! gives (7e-5 was seen) and below 3.9e-4, which elements are off by without any one of the low parts.
double worst_rounding(const std::vector<std::vector<double>>& narrow,
                      const std::vector<std::vector<double>>& wide)
{
  constexpr double largest = 65504;
  double worst = 0;
  for (std::size_t n = 0; n < wide.size(); ++n) {
    double squares = 0;
    for (const double value : wide[n]) { squares += value * value; }
    const double size = std::sqrt(squares / static_cast<double>(wide[n].size()));
    for (std::size_t i = 0; i < wide[n].size(); ++i) {
      const double value = wide[n][i];
      if (std::abs(value) > 1.001 * largest) {
        if (narrow[n][i] != std::copysign(HUGE_VAL, value)) { return HUGE_VAL; }
      }
      else if (std::abs(value) < 0.999 * largest) {
        const double off = std::abs(narrow[n][i] - value) - 1e-3 * std::abs(value) - 0x1p-24;
        if (std::isnan(off)) { return HUGE_VAL; }
        if (off > worst * size) { worst = off / size; }
      }
    }
  }
  return worst;
}

void check_magnitudes(const mhar::shape& extent, int num_calls)
{
  mhar_test::random_inputs random{531};
  for (const magnitudes& scale : all_magnitudes) {
    CAPTURE(std::string{scale.name});
    CAPTURE(extent.width);
    mhar_test::sweep_options options;
    options.extent = extent;
    options.schedule = mhar::full_schedule(num_calls);
    options.gate = true;
    options.gate_value = scale.gate;
    const mhar_test::sweep_case<float16> data = data_of(options, scale);
    mhar_test::run_choices choices;
    constexpr auto type = mhar::element::float16;
    mhar::plan_costs costs = mhar::costs_of(extent, type, type, type);
    costs.max_members = 16;
    choices.plan = mhar::cheapest_plan(options.schedule, costs);
    choices.call_state = choices.row_state = mhar::element::float32;
    choices.narrow_mixes = false;
    mhar_test::sweep_run<device, float16> run{data, choices};
    run.forward();
    const mhar_test::sweep_results expected = data.expected();
    for (const auto& error : mhar_test::relative_errors(run.backward(), expected)) {
      CHECK_MESSAGE(error.second <= scale.error, error.first << " is off by " << error.second);
    }

    // Finished by the same kernels.
    choices.narrow_gradients = true;
    mhar_test::sweep_run<device, float16> narrow{data, choices};
    narrow.forward();
    narrow.backward();
    const double of_queries = mhar_test::relative_errors(narrow.results(), expected).at("query");
    CHECK_MESSAGE(of_queries <= scale.error, "query is off by " << of_queries);
    const double rounding =
        worst_rounding(narrow.results().at("row_gradient"), run.results().at("row_gradient"));
    CHECK_MESSAGE(rounding <= 2e-4, "stored gradients are off by " << rounding);
  }
}

TEST_CASE("device float16 sweeps: exact at every magnitude")
{
  if (mhar_test::skip_without_gpu()) { return; }
  check_magnitudes({5, 2 * 64, 2}, 30);
  check_magnitudes({5, 2 * 256, 2}, 8);
}

}  // namespace
