// SPDX-License-Identifier: Apache-2.0
//! The operations that several layers share.
#include "tensor.hpp"

#include <cmath>

namespace quickstart {

float random_normal::operator()()
{
  // Box-Muller on 53-bit uniforms; 1 - u is never zero.
  const auto uniform = [this] { return static_cast<double>(engine_() >> 11) * 0x1p-53; };
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return static_cast<float>(radius * std::cos(2 * 3.14159265358979323846 * uniform()));
}

parameter make_weight(Eigen::Index inputs, Eigen::Index outputs, random_normal& random, double gain)
{
  parameter weight{inputs, outputs, 0, decay::weight};
  const auto scale = static_cast<float>(gain / std::sqrt(static_cast<double>(inputs)));
  for (Eigen::Index i = 0; i < weight.value.size(); ++i) {
    weight.value.data()[i] = scale * random();
  }
  return weight;
}

part part_of(Eigen::Index total, int index)
{
  const Eigen::Index first = total * index / num_parts;
  return {first, total * (index + 1) / num_parts - first};
}

void multiply(const executor& run, input x, input w, output out)
{
  for_each(run, num_parts, [&](int index) {
    const part rows = part_of(x.rows(), index);
    out.middleRows(rows.first, rows.count).noalias() = x.middleRows(rows.first, rows.count) * w;
  });
}

void multiply_transposed(const executor& run, input dout, input w, output dx)
{
  for_each(run, num_parts, [&](int index) {
    const part rows = part_of(dout.rows(), index);
    dx.middleRows(rows.first, rows.count).noalias() =
        dout.middleRows(rows.first, rows.count) * w.transpose();
  });
}

void add_weight_gradient(const executor& run, input x, input dout, output dw)
{
  // Cut along the inputs, not along the positions: every element of dw is summed by one task.
  for_each(run, num_parts, [&](int index) {
    const part inputs = part_of(x.cols(), index);
    dw.middleRows(inputs.first, inputs.count).noalias() +=
        x.middleCols(inputs.first, inputs.count).transpose() * dout;
  });
}

rms_norm::rms_norm(Eigen::Index num_positions, Eigen::Index width)
    : gain_{1, width, 1}, inverse_rms_{num_positions}
{
}

void rms_norm::forward(const executor& run, input x, output y)
{
  constexpr float eps = 1e-6F;
  for_each(run, num_parts, [&](int index) {
    const part rows = part_of(x.rows(), index);
    for (Eigen::Index p = rows.first; p < rows.first + rows.count; ++p) {
      const float mean_square = x.row(p).squaredNorm() / static_cast<float>(x.cols());
      inverse_rms_(p) = 1 / std::sqrt(mean_square + eps);
      y.row(p) = inverse_rms_(p) * x.row(p).cwiseProduct(gain_.value.row(0));
    }
  });
}

void rms_norm::backward(const executor& run, input x, input dy, output dx)
{
  // With t = dy * gain:  dx = r t - (r^3 / d) <t, x> x.
  for_each(run, num_parts, [&](int index) {
    const part rows = part_of(x.rows(), index);
    for (Eigen::Index p = rows.first; p < rows.first + rows.count; ++p) {
      const float r = inverse_rms_(p);
      const float dot = dy.row(p).cwiseProduct(gain_.value.row(0)).dot(x.row(p));
      const float along = r * r * r * dot / static_cast<float>(x.cols());
      dx.row(p) = r * dy.row(p).cwiseProduct(gain_.value.row(0)) - along * x.row(p);
    }
    const part columns = part_of(x.cols(), index);
    for (Eigen::Index p = 0; p < x.rows(); ++p) {
      gain_.gradient.row(0).segment(columns.first, columns.count) +=
          inverse_rms_(p) * dy.row(p)
                                .segment(columns.first, columns.count)
                                .cwiseProduct(x.row(p).segment(columns.first, columns.count));
    }
  });
}

double cross_entropy(const executor& run, output logits, const std::vector<int>& targets)
{
  const Eigen::Index num_positions = logits.rows();
  std::vector<double> losses(targets.size());
  for_each(run, num_parts, [&](int index) {
    const part rows = part_of(num_positions, index);
    for (Eigen::Index p = rows.first; p < rows.first + rows.count; ++p) {
      const auto position = static_cast<std::size_t>(p);
      const int target = targets[position];
      auto row = logits.row(p).array();
      row -= row.maxCoeff();
      const float correct = row(target);
      row = row.exp();
      const float sum = row.sum();
      losses[position] = std::log(static_cast<double>(sum)) - static_cast<double>(correct);
      row /= sum * static_cast<float>(num_positions);
      row(target) -= 1 / static_cast<float>(num_positions);
    }
  });
  double total = 0;
  for (const double loss : losses) { total += loss; }
  return total / static_cast<double>(num_positions);
}

}  // namespace quickstart
