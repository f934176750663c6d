// SPDX-License-Identifier: Apache-2.0
//! A chain at a few positions on the host, by the reference: inputs, and what they must come to.
#pragma once

#include "support/host_random.hpp"
#include "support/shapes.hpp"

#include <mhar/reference/chain.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace mhar_bench {

//! Largest difference relative to the largest expected number.
template <class T>
double relative_error(const T* actual, const mhar::reference::table& expected)
{
  double difference = 0;
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    const double error =
        std::abs(mhar::load<double>(actual, mhar::element_of<T>::value, i) - expected.data()[i]);
    difference = error <= difference ? difference : error;  // takes a NaN, too
  }
  return difference / expected.abs().maxCoeff();
}

//! Errors of many gradients: the largest, and the geometric mean.
class gradient_errors
{
public:
  void add(double error)
  {
    largest_ = error <= largest_ ? largest_ : error;
    sum_of_logs_ += std::log((std::max)(error, 1e-300));
    ++count_;
  }
  [[nodiscard]] double largest() const { return largest_; }
  [[nodiscard]] double mean() const { return std::exp(sum_of_logs_ / count_); }

private:
  double largest_ = 0;
  double sum_of_logs_ = 0;
  int count_ = 0;
};

//! Full mode over normal rows, with logits that have a deviation of 1.6 and reach about 4.
template <class T>
class exact_chain
{
public:
  //! num_positions of the shape are those on the host.
  explicit exact_chain(const chain_shape& shape)
      : shape_{shape},
        rows_(static_cast<std::size_t>(shape.num_calls * elements())),
        upstream_(rows_.size()),
        queries_(static_cast<std::size_t>(shape.num_calls * shape.width)),
        norm_weights_(queries_.size())
  {
    fill_normal(rows_);
    fill_normal(upstream_);
    // The same numbers for rows and do would be a special case.
    std::reverse(upstream_.begin(), upstream_.end());
    fill_normal(queries_, 0, 1.6f / std::sqrt(static_cast<float>(shape.width / shape.num_heads)));
    fill_normal(norm_weights_, 1, 0.1f);
    std::reverse(norm_weights_.begin(), norm_weights_.end());
  }

  [[nodiscard]] std::int64_t elements() const { return shape_.num_positions * shape_.width; }
  [[nodiscard]] const T* row(int n) const { return rows_.data() + n * elements(); }
  [[nodiscard]] const T* upstream(int call) const { return upstream_.data() + call * elements(); }
  [[nodiscard]] const std::vector<float>& queries() const { return queries_; }
  [[nodiscard]] const std::vector<float>& norm_weights() const { return norm_weights_; }

  [[nodiscard]] mhar::reference::chain_problem<T> problem() const
  {
    mhar::reference::chain_problem<T> chain;
    chain.extent = {shape_.num_positions, shape_.width, shape_.num_heads};
    chain.num_rows = shape_.num_calls;
    chain.rows = mhar::source_major(rows_.data(), shape_.num_positions, shape_.width);
    for (int c = 0; c < shape_.num_calls; ++c) {
      mhar::reference::chain_call<T> call;
      call.num_rows = c + 1;
      call.site.query = queries_.data() + c * shape_.width;
      call.site.norm_weight = norm_weights_.data() + c * shape_.width;
      call.output_gradient = {upstream(c), shape_.width};
      chain.calls.push_back(call);
    }
    return chain;
  }

private:
  chain_shape shape_;
  std::vector<T> rows_;
  std::vector<T> upstream_;
  std::vector<float> queries_;
  std::vector<float> norm_weights_;
};

}  // namespace mhar_bench
