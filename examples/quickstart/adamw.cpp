// SPDX-License-Identifier: Apache-2.0
//! AdamW with gradient clipping and a warm-up then cosine learning rate.
#include "adamw.hpp"

#include <algorithm>
#include <cmath>

namespace quickstart {

adamw::adamw(std::vector<parameter*> parameters)
{
  for (parameter* const of : parameters) {
    const matrix zero = matrix::Zero(of->value.rows(), of->value.cols());
    moments_.push_back({of, zero, zero});
  }
}

void adamw::step(double learning_rate)
{
  constexpr double beta1 = 0.9;
  constexpr double beta2 = 0.95;
  constexpr float eps = 1e-8F;
  constexpr double weight_decay = 0.1;

  double square = 0;
  for (const moments& each : moments_) {
    square += static_cast<double>(each.of->gradient.squaredNorm());
  }
  const auto clip = static_cast<float>(1 / std::max(1.0, std::sqrt(square)));

  ++num_steps_;
  const auto unbias1 = static_cast<float>(1 / (1 - std::pow(beta1, num_steps_)));
  const auto unbias2 = static_cast<float>(1 / (1 - std::pow(beta2, num_steps_)));
  const auto rate = static_cast<float>(learning_rate);
  const auto keep1 = static_cast<float>(beta1);
  const auto keep2 = static_cast<float>(beta2);
  for (moments& each : moments_) {
    auto gradient = each.of->gradient.array();
    auto value = each.of->value.array();
    auto first = each.first.array();
    auto second = each.second.array();
    gradient *= clip;
    first = keep1 * first + (1 - keep1) * gradient;
    second = keep2 * second + (1 - keep2) * gradient.square();
    if (each.of->kind == decay::weight) {
      value *= static_cast<float>(1 - learning_rate * weight_decay);
    }
    value -= rate * unbias1 * first / ((unbias2 * second).sqrt() + eps);
    gradient = 0;
  }
}

double learning_rate(int step, int num_steps, double peak)
{
  const int warmup = std::max(1, num_steps / 20);
  if (step < warmup) { return peak * (step + 1) / warmup; }
  const double done = static_cast<double>(step - warmup) / std::max(1, num_steps - warmup);
  return peak * (0.1 + 0.9 * 0.5 * (1 + std::cos(3.14159265358979323846 * done)));
}

}  // namespace quickstart
