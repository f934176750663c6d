// SPDX-License-Identifier: Apache-2.0
//! One routing call with everything saved and every gradient wanted, over random inputs, for the CPU benchmarks.
#pragma once

#include "support/host_random.hpp"
#include "support/shapes.hpp"

#include <mhar/types/call.hpp>

#include <vector>

namespace mhar_bench {

//! T is the element of the rows, of the outputs and of the rows' gradients; parameters are float.
template <class T>
class cpu_call
{
public:
  explicit cpu_call(const call_shape& shape)
      : extent_{shape.num_positions, shape.width, shape.num_heads, 0},
        num_rows_{shape.num_sources},
        rows_(size(num_rows_)),
        row_gradients_(size(num_rows_)),
        output_(size(1)),
        upstream_(size(1)),
        lse_(static_cast<std::size_t>(extent_.num_positions * extent_.num_heads)),
        inverse_rms_(static_cast<std::size_t>(num_rows_ * extent_.num_positions)),
        query_(static_cast<std::size_t>(extent_.width)),
        norm_weight_(query_.size()),
        query_gradient_(query_.size()),
        norm_weight_gradient_(query_.size())
  {
    fill_normal(rows_);
    fill_normal(upstream_);
    fill_normal(query_, 0, 0.1f);
    fill_normal(norm_weight_, 1, 0.1f);
  }

  [[nodiscard]] mhar::route_problem<T> forward()
  {
    mhar::route_problem<T> problem;
    problem.extent = extent_;
    problem.num_rows = num_rows_;
    problem.rows = mhar::source_major(rows_.data(), extent_.num_positions, extent_.width);
    problem.site.query = query_.data();
    problem.site.norm_weight = norm_weight_.data();
    problem.outputs.mix = {output_.data(), extent_.width};
    problem.outputs.lse = lse_.data();
    problem.outputs.inverse_rms = inverse_rms_.data();
    return problem;
  }

  [[nodiscard]] mhar::route_gradient_problem<T> backward()
  {
    const mhar::route_problem<T> forward_problem = forward();
    mhar::route_gradient_problem<T> problem;
    problem.extent = extent_;
    problem.num_rows = num_rows_;
    problem.rows = forward_problem.rows;
    problem.site = forward_problem.site;
    problem.output_gradient = {upstream_.data(), extent_.width};
    problem.lse = lse_.data();
    problem.inverse_rms = inverse_rms_.data();
    problem.mix = forward_problem.outputs.mix;
    problem.row_gradients.base = row_gradients_.data();
    problem.row_gradients.type = mhar::element_of<T>::value;
    problem.row_gradients.row_stride = extent_.num_positions * extent_.width;
    problem.row_gradients.position_stride = extent_.width;
    problem.gradients.query = query_gradient_.data();
    problem.gradients.norm_weight = norm_weight_gradient_.data();
    return problem;
  }

  //! Rows once and the mix; statistics besides.
  [[nodiscard]] double forward_bytes() const
  {
    return (num_rows_ + 1.0) * matrix_bytes() +
           4.0 * static_cast<double>(lse_.size() + inverse_rms_.size());
  }
  //! Rows, mix and dy once; the rows' gradients.
  [[nodiscard]] double backward_bytes() const
  {
    return (2.0 * num_rows_ + 2) * matrix_bytes() +
           4.0 * static_cast<double>(lse_.size() + inverse_rms_.size());
  }
  //! Per row and element: its square, its logit, its part of the mix.
  [[nodiscard]] double forward_multiply_adds() const { return 3.0 * num_rows_ * elements(); }
  //! Two inner products, three terms of ds, one of dw.
  [[nodiscard]] double backward_multiply_adds() const { return 6.0 * num_rows_ * elements(); }

private:
  [[nodiscard]] std::size_t size(int rows) const
  {
    return static_cast<std::size_t>(rows * extent_.num_positions * extent_.width);
  }
  [[nodiscard]] double elements() const { return static_cast<double>(size(1)); }
  [[nodiscard]] double matrix_bytes() const { return elements() * sizeof(T); }

  mhar::shape extent_;
  int num_rows_;
  std::vector<T> rows_;
  std::vector<T> row_gradients_;
  std::vector<T> output_;
  std::vector<T> upstream_;
  std::vector<mhar::accumulate_t<T>> lse_;
  std::vector<mhar::accumulate_t<T>> inverse_rms_;
  std::vector<float> query_;
  std::vector<float> norm_weight_;
  std::vector<float> query_gradient_;
  std::vector<float> norm_weight_gradient_;
};

}  // namespace mhar_bench
