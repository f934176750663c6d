// SPDX-License-Identifier: Apache-2.0
//! Weights and lse of a call in float against plain loops in double, to be compiled with the options of fast math.
#include <mhar/mhar.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <vector>

int main()
{
  constexpr std::size_t positions = 5;
  constexpr std::size_t rows = 6;
  constexpr std::size_t width = 40;
  constexpr std::size_t heads = 2;
  constexpr std::size_t head_width = width / heads;
  std::mt19937 engine{7};
  std::normal_distribution<float> normal;
  std::vector<float> sources(rows * positions * width);
  std::vector<float> query(width);
  for (float& value : sources) { value = normal(engine); }
  for (float& value : query) { value = normal(engine); }
  std::vector<float> weights(positions * heads * rows);
  std::vector<float> lse(positions * heads);

  mhar::route_problem<float> problem;
  problem.extent = {positions, width, heads};
  problem.num_rows = rows;
  problem.rows = mhar::source_major(sources.data(), positions, width);
  problem.site.query = query.data();
  problem.outputs.weights = weights.data();
  problem.outputs.lse = lse.data();
  const mhar::cpu::aligned_memory workspace{mhar::cpu::workspace_bytes(problem, {})};
  mhar::check(mhar::cpu::route(problem, workspace.context()));

  double worst = 0;
  for (std::size_t p = 0; p < positions; ++p) {
    for (std::size_t h = 0; h < heads; ++h) {
      double terms[rows];
      double sum = 0;
      for (std::size_t n = 0; n < rows; ++n) {
        const float* const row = sources.data() + (n * positions + p) * width;
        double squares = 0;
        double product = 0;
        for (std::size_t k = 0; k < width; ++k) { squares += double{row[k]} * double{row[k]}; }
        for (std::size_t k = h * head_width; k < (h + 1) * head_width; ++k) {
          product += double{query[k]} * double{row[k]};
        }
        terms[n] = std::exp(product / std::sqrt(squares / width + 1e-6));
        sum += terms[n];
      }
      for (std::size_t n = 0; n < rows; ++n) {
        const double own = weights[(p * heads + h) * rows + n];
        worst = (std::max)(worst, std::abs(own - terms[n] / sum));
      }
      worst = (std::max)(worst, std::abs(double{lse[p * heads + h]} - std::log(sum)) / 4);
    }
  }
  std::printf("largest error of a weight or of a log-sum-exp: %g\n", worst);
  return worst < 2e-6 ? 0 : 1;
}
