// SPDX-License-Identifier: Apache-2.0
//! What the reference makes of every call of a sweep alone, added up in double.
#pragma once

#include "cpu/sweep_arrays.hpp"
#include "support/tolerance.hpp"

#include <mhar/reference/route.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace mhar_test {

template <class T>
class sweep_reference
{
public:
  using accumulate = mhar::accumulate_t<T>;

  explicit sweep_reference(const sweep_arrays<T>& data) : data_{data}
  {
    for (int c = 0; c < data.calls; ++c) { add_reference(c); }
  }

  //! Within the arithmetic's and the storage's rounding of the array's size; entries nobody writes are zero in both.
  template <class Actual>
  void compare(const std::string& name, const guarded<Actual>& actual,
               const std::vector<double>& expected, double sums) const
  {
    constexpr double storage = sizeof(T) == 2 ? 2 * tolerance_of<T>().relative : 0;
    constexpr double arithmetic = sizeof(accumulate) == 8 ? 1e-11 : 2e-5;
    const double states = mhar::size_of(data_.options.states) == 2
                              ? (data_.options.states == mhar::element::float16 ? 2e-3 : 1.6e-2)
                              : 0;
    double size = 0;
    for (const double value : expected) { size = std::max(size, std::abs(value)); }
    const double allowed = (storage + arithmetic + states) * std::max(1.0, size) * sums;
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < actual.size(); ++i) {
      const auto got = mhar::widen<double>(actual[i]);
      const double wanted = expected[static_cast<std::size_t>(i)];
      const bool unwritten = wanted == 0 && all_poison(&actual[i], sizeof(Actual));
      if (!unwritten && !close(got, wanted, {0, allowed})) {
        if (wrong++ == 0) {
          MESSAGE(name, " [", i, "] is ", got, ", expected ", wanted, " within ", allowed);
        }
      }
    }
    CHECK_MESSAGE(wrong == 0, name, ": ", wrong, " of ", actual.size(), " differ");
  }

  //! As long as the sweep's own arrays.
  struct arrays
  {
    std::vector<double> y, lse, rows, private_rows;
    std::vector<double> query, norm_weight, bias, null_source, gate, norm;
  };
  [[nodiscard]] const arrays& expected() const { return expected_; }

private:
  //! Call c alone, in double; gradients of shared rows add up.
  void add_reference(int call)
  {
    std::vector<const T*> rows;
    std::vector<void*> row_gradients;
    // The reference takes one position stride for all rows, so rows are listed from contiguous copies.
    for (int n = 0; n <= call; ++n) {
      rows.push_back(contiguous_row(n));
      row_gradients.push_back(expected_.rows.data() + n * data_.matrix_size());
    }
    if (data_.options.private_rows) {
      rows.push_back(data_.private_rows.data() + call * data_.matrix_size());
      row_gradients.push_back(expected_.private_rows.data() + call * data_.matrix_size());
    }
    mhar::route_problem<T> forward;
    forward.extent = data_.options.extent;
    forward.num_rows = static_cast<int>(rows.size());
    forward.rows = mhar::row_list<T>(rows.data(), data_.width);
    forward.site = data_.sites[static_cast<std::size_t>(call)];
    forward.stage = data_.stage(call);
    forward.outputs.y = {expected_.y.data() + call * data_.matrix_size(), data_.width};
    std::vector<accumulate> lse(static_cast<std::size_t>(data_.positions * data_.heads));
    forward.outputs.lse = lse.data();
    mhar::reference::route(forward);
    std::copy(lse.begin(), lse.end(), expected_.lse.begin() + call * data_.positions * data_.heads);

    mhar::route_gradient_problem<T> backward;
    backward.extent = forward.extent;
    backward.num_rows = forward.num_rows;
    backward.rows = forward.rows;
    backward.site = forward.site;
    backward.stage = forward.stage;
    backward.output_gradient = {data_.upstream.data() + call * data_.matrix_size(), data_.width};
    backward.row_gradients.list = row_gradients.data();
    backward.row_gradients.type = mhar::element::float64;
    backward.row_gradients.position_stride = data_.width;
    backward.row_gradients.mode = mhar::update::accumulate;
    mhar::site_gradients& wanted = backward.gradients;
    wanted.query = expected_.query.data() + call * data_.width;
    wanted.norm_weight = expected_.norm_weight.data() + call * data_.width;
    if (data_.options.bias) { wanted.bias = expected_.bias.data() + call * data_.most_sources(); }
    if (data_.options.null_source) {
      wanted.null_source = expected_.null_source.data() + call * data_.width;
    }
    if (data_.options.gate) { wanted.gate = expected_.gate.data() + call; }
    if (data_.options.norm == mhar::output_norm::rms) {
      wanted.output_norm_weight = expected_.norm.data() + call * data_.width;
    }
    mhar::reference::route_gradient(backward);
  }

  [[nodiscard]] const T* contiguous_row(int row)
  {
    std::vector<T>& copy = row_copies_[static_cast<std::size_t>(row)];
    copy.clear();
    for (std::int64_t p = 0; p < data_.positions; ++p) {
      const T* const from = data_.row_view().at(row, p);
      copy.insert(copy.end(), from, from + data_.width);
    }
    return copy.data();
  }

  static std::vector<double> zeros(std::int64_t count)
  {
    return std::vector<double>(static_cast<std::size_t>(count), 0.0);
  }

  const sweep_arrays<T>& data_;
  std::vector<std::vector<T>> row_copies_ =
      std::vector<std::vector<T>>(static_cast<std::size_t>(data_.calls));
  arrays expected_ = {zeros(data_.calls * data_.matrix_size()),
                      zeros(data_.calls* data_.positions* data_.heads),
                      zeros(data_.calls* data_.matrix_size()),
                      zeros(data_.calls* data_.matrix_size()),
                      zeros(data_.calls* data_.width),
                      zeros(data_.calls* data_.width),
                      zeros(data_.calls* data_.most_sources()),
                      zeros(data_.calls* data_.width),
                      zeros(data_.calls),
                      zeros(data_.calls* data_.width)};
};

}  // namespace mhar_test
