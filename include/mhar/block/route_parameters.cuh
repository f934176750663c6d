// SPDX-License-Identifier: Apache-2.0
//! One routing call as a kernel reads it: what make_route_parameters makes of a problem, rows apart.
#pragma once

#include <mhar/thread/vector.hpp>
#include <mhar/thread/width_tree.hpp>
#include <mhar/types/update.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T>
struct route_parameters
{
  using accumulate = accumulate_t<T>;

  thread::width_tree tree;
  std::int64_t num_positions;
  int num_rows;
  key_rounding rounding;
  output_norm norm;
  accumulate scale;
  accumulate eps;
  accumulate norm_eps;
  const_array query;
  const_array norm_weight;
  const_array bias;
  const_array null_source;
  const_array gate;
  const_array output_weight;
  const_matrix partial;
  matrix y;
  matrix combined;
  matrix mix;
  accumulate* lse;
  accumulate* inverse_rms;
  accumulate* weights;

  int updated_row;  //!< the row that delta is added to, or -1
  const_matrix delta;
  matrix sum;
  matrix copy;
};

template <class T>
[[nodiscard]] route_parameters<T> make_route_parameters(const route_problem<T>& problem) noexcept
{
  using accumulate = accumulate_t<T>;
  route_parameters<T> p{};
  p.tree = thread::make_width_tree(problem.extent, thread::chunk_width<T>);
  p.num_positions = problem.extent.num_positions;
  p.num_rows = problem.num_rows;
  p.rounding = problem.site.rounding;
  p.norm = problem.stage.norm;
  p.scale = static_cast<accumulate>(problem.site.scale);
  p.eps = static_cast<accumulate>(problem.site.eps);
  p.norm_eps = static_cast<accumulate>(problem.stage.norm_eps);
  p.query = problem.site.query;
  p.norm_weight = problem.site.norm_weight;
  p.bias = problem.site.bias;
  p.null_source = problem.site.null_source;
  p.gate = problem.stage.gate;
  p.output_weight = problem.stage.norm_weight;
  p.partial = problem.stage.partial;
  p.y = problem.outputs.y;
  p.combined = problem.outputs.combined;
  p.mix = problem.outputs.mix;
  p.lse = problem.outputs.lse;
  p.inverse_rms = problem.outputs.inverse_rms;
  p.weights = problem.outputs.weights;
  p.updated_row = -1;
  return p;
}

template <class T>
[[nodiscard]] route_parameters<T> make_route_parameters(const update_problem<T>& problem) noexcept
{
  route_parameters<T> p = make_route_parameters(problem.call);
  p.updated_row = problem.row;
  p.delta = problem.delta;
  p.sum = problem.sum;
  p.copy = problem.copy;
  return p;
}

}  // namespace block
MHAR_NAMESPACE_END
