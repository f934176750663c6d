// SPDX-License-Identifier: Apache-2.0
//! One call with every option beside the reference, forward and backward: the same problem structs,
//! the CPU in float and the reference in double.
//!
//! Sources are a null source and five rows; then o = partial + alpha * mix, and y = RMSNorm(o).
#include <mhar/cpu/aligned_memory.hpp>
#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>
#include <mhar/reference/route.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr int num_positions = 7;
constexpr int num_rows = 5;
constexpr int num_heads = 3;
constexpr int width = 24;

std::vector<float> random_numbers(int count)
{
  static std::mt19937 engine{1};
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) { number = normal(engine); }
  return numbers;
}

//! What a call reads.
struct call_inputs
{
  std::vector<float> rows = random_numbers(num_rows * num_positions * width);
  std::vector<float> query = random_numbers(width);
  std::vector<float> norm_weight = random_numbers(width);
  std::vector<float> bias = random_numbers(1 + num_rows);
  std::vector<float> null_source = random_numbers(width);
  std::vector<float> partial = random_numbers(num_positions * width);
  float alpha = 0.7F;
  std::vector<float> output_norm_weight = random_numbers(width);
  std::vector<float> output_gradient = random_numbers(num_positions * width);

  [[nodiscard]] mhar::site_parameters site() const
  {
    mhar::site_parameters parameters;
    parameters.query = query.data();
    parameters.norm_weight = norm_weight.data();
    parameters.bias = bias.data();
    parameters.null_source = null_source.data();
    return parameters;
  }
  [[nodiscard]] mhar::output_stage stage() const
  {
    mhar::output_stage after;
    after.partial = {partial.data(), width};
    after.gate = &alpha;
    after.norm = mhar::output_norm::rms;
    after.norm_weight = output_norm_weight.data();
    return after;
  }
};

//! What it writes. Outputs have a type of their own: float from the CPU, double from the reference.
template <class T>
struct call_results
{
  std::vector<T> y = std::vector<T>(num_positions * width);
  std::vector<T> rows = std::vector<T>(num_rows * num_positions * width);
  std::vector<T> partial = std::vector<T>(num_positions * width);
  std::vector<T> query = std::vector<T>(width);
  std::vector<T> norm_weight = std::vector<T>(width);
  std::vector<T> bias = std::vector<T>(1 + num_rows);
  std::vector<T> null_source = std::vector<T>(width);
  std::vector<T> alpha = std::vector<T>(1);
  std::vector<T> output_norm_weight = std::vector<T>(width);
};

template <class T>
mhar::route_problem<float> forward_problem(const call_inputs& from, call_results<T>& to)
{
  mhar::route_problem<float> problem;
  problem.extent = {num_positions, width, num_heads};
  problem.num_rows = num_rows;
  problem.rows = mhar::source_major(from.rows.data(), num_positions, width);
  problem.site = from.site();
  problem.stage = from.stage();
  problem.outputs.y = {to.y.data(), width};
  return problem;
}

//! Nothing saved by the forward is given, so the backward recomputes it; a training loop would keep
//! lse, mix and combined.
template <class T>
mhar::route_gradient_problem<float> backward_problem(const call_inputs& from, call_results<T>& to)
{
  mhar::route_gradient_problem<float> problem;
  problem.extent = {num_positions, width, num_heads};
  problem.num_rows = num_rows;
  problem.rows = mhar::source_major(from.rows.data(), num_positions, width);
  problem.site = from.site();
  problem.stage = from.stage();
  problem.output_gradient = {from.output_gradient.data(), width};
  problem.row_gradients = {to.rows.data(), mhar::element_of<T>::value, num_positions * width,
                           width};
  problem.partial_gradient = {to.partial.data(), width};
  problem.gradients.query = to.query.data();
  problem.gradients.norm_weight = to.norm_weight.data();
  problem.gradients.bias = to.bias.data();
  problem.gradients.null_source = to.null_source.data();
  problem.gradients.gate = to.alpha.data();
  problem.gradients.output_norm_weight = to.output_norm_weight.data();
  return problem;
}

//! Prints a line and returns the largest difference relative to the largest element.
double compare(const char* name, const std::vector<float>& got, const std::vector<double>& want)
{
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    difference = std::max(difference, std::abs(static_cast<double>(got[i]) - want[i]));
  }
  std::printf("%-28s %14.7f %14.7f %13.1e\n", name, static_cast<double>(got[0]), want[0],
              difference / largest);
  return difference / largest;
}

}  // namespace

int main()
{
  const call_inputs inputs;

  call_results<float> got;
  const auto forward = forward_problem(inputs, got);
  const auto backward = backward_problem(inputs, got);
  const mhar::cpu::aligned_memory workspace{
      std::max(mhar::cpu::workspace_bytes(forward, {}), mhar::cpu::workspace_bytes(backward, {}))};
  const mhar::cpu::context context = workspace.context();
  mhar::check(mhar::cpu::route(forward, context));
  mhar::check(mhar::cpu::route_gradient(backward, context));

  call_results<double> want;
  mhar::reference::route(forward_problem(inputs, want));
  mhar::reference::route_gradient(backward_problem(inputs, want));

  std::printf("%-28s %14s %14s %13s\n", "first element of", "cpu, float", "reference",
              "largest error");
  double error = compare("output", got.y, want.y);
  error = std::max(error, compare("gradient of rows", got.rows, want.rows));
  error = std::max(error, compare("gradient of partial", got.partial, want.partial));
  error = std::max(error, compare("gradient of query", got.query, want.query));
  error = std::max(error, compare("gradient of norm weight", got.norm_weight, want.norm_weight));
  error = std::max(error, compare("gradient of bias", got.bias, want.bias));
  error = std::max(error, compare("gradient of null source", got.null_source, want.null_source));
  error = std::max(error, compare("gradient of alpha", got.alpha, want.alpha));
  error = std::max(
      error, compare("gradient of output norm", got.output_norm_weight, want.output_norm_weight));
  return error <= 5e-6 ? 0 : 1;
}
