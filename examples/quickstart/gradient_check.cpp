// SPDX-License-Identifier: Apache-2.0
//! The routing of one training step beside the reference.
#include "gradient_check.hpp"

#include <mhar/reference/route.hpp>

#include <algorithm>
#include <limits>

namespace quickstart {
namespace {

using wide_matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

double relative_error(input got, const wide_matrix& want)
{
  const double largest = want.cwiseAbs().maxCoeff();
  const double difference = (got.cast<double>() - want).cwiseAbs().maxCoeff();
  // A comparison that lets NaN through as an error; the first call has one row, and its gradients
  // are exactly 0.
  if (!(difference > 0)) { return difference == 0 ? 0 : std::numeric_limits<double>::infinity(); }
  return difference / largest;
}

void keep_largest(double& error, double candidate) { error = std::max(error, candidate); }

}  // namespace

double routing_errors::largest() const { return std::max({inputs, rows, queries, norms}); }

routing_errors check_routing(routed_residual& residual)
{
  routing_errors errors;
  const mhar::shape extent = residual.extent();
  const int num_calls = residual.num_calls();
  // [S * P, d]: every call adds its share to the rows it reads.
  wide_matrix row_gradients = wide_matrix::Zero(num_calls * extent.num_positions, extent.width);

  for (int call = 0; call < num_calls; ++call) {
    wide_matrix made(extent.num_positions, extent.width);
    mhar::route_problem<float> forward;
    forward.extent = extent;
    forward.num_rows = call + 1;
    forward.rows = residual.rows();
    forward.site = residual.site(call);
    forward.outputs.y = {made.data(), extent.width};
    mhar::reference::route(forward);
    keep_largest(errors.inputs, relative_error(residual.input_of(call), made));

    wide_matrix query(1, extent.width);
    wide_matrix norm(1, extent.width);
    mhar::route_gradient_problem<float> backward;
    backward.extent = extent;
    backward.num_rows = call + 1;
    backward.rows = residual.rows();
    backward.site = residual.site(call);
    backward.output_gradient = {residual.input_gradient(call).data(), extent.width};
    backward.row_gradients = {row_gradients.data(),
                              mhar::element::float64,
                              extent.num_positions * extent.width,
                              extent.width,
                              nullptr,
                              mhar::update::accumulate};
    backward.gradients.query = query.data();
    backward.gradients.norm_weight = norm.data();
    mhar::reference::route_gradient(backward);
    keep_largest(errors.queries, relative_error(residual.query_gradient(call), query));
    keep_largest(errors.norms, relative_error(residual.norm_gradient(call), norm));
  }
  for (int row = 0; row < num_calls; ++row) {
    keep_largest(errors.rows, relative_error(residual.row_gradient(row),
                                             row_gradients.middleRows(row * extent.num_positions,
                                                                      extent.num_positions)));
  }
  return errors;
}

}  // namespace quickstart
