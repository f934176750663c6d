// SPDX-License-Identifier: Apache-2.0
//! The feed-forward sublayer.
#include "mlp.hpp"

namespace quickstart {

mlp::mlp(Eigen::Index num_positions, Eigen::Index width, random_normal& random)
    : norm_{num_positions, width},
      up_{make_weight(width, 4 * width, random)},
      down_{make_weight(4 * width, width, random)},
      normed_(num_positions, width),
      wide_(num_positions, 4 * width),
      active_(num_positions, 4 * width),
      dwide_(num_positions, 4 * width)
{
}

void mlp::forward(const executor& run, input x, output out)
{
  norm_.forward(run, x, normed_);
  multiply(run, normed_, up_.value, wide_);
  for_each(run, num_parts, [&](int index) {
    const part rows = part_of(x.rows(), index);
    const auto wide = wide_.middleRows(rows.first, rows.count).array();
    active_.middleRows(rows.first, rows.count) = wide / (1 + (-wide).exp());
  });
  multiply(run, active_, down_.value, out);
}

void mlp::backward(const executor& run, input x, input dout, output dx)
{
  multiply_transposed(run, dout, down_.value, dwide_);
  add_weight_gradient(run, active_, dout, down_.gradient);
  // silu'(z) = sigmoid(z) + silu(z) (1 - sigmoid(z))
  for_each(run, num_parts, [&](int index) {
    const part rows = part_of(x.rows(), index);
    const auto active = active_.middleRows(rows.first, rows.count).array();
    const auto wide = wide_.middleRows(rows.first, rows.count).array();
    const auto sigmoid = 1 / (1 + (-wide).exp());
    dwide_.middleRows(rows.first, rows.count).array() *= sigmoid + active * (1 - sigmoid);
  });
  add_weight_gradient(run, normed_, dwide_, up_.gradient);
  multiply_transposed(run, dwide_, up_.value,
                      normed_);  // the normed input has been used up: its gradient takes its place
  norm_.backward(run, x, normed_, dx);
}

}  // namespace quickstart
