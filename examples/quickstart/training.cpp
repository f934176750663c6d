// SPDX-License-Identifier: Apache-2.0
//! The training loop.
#include "training.hpp"

#include "adamw.hpp"
#include "gradient_check.hpp"

#include <mhar/cpu/route.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <type_traits>

namespace quickstart {
namespace {

constexpr double peak_learning_rate = 6e-3;
constexpr int num_reports = 8;
constexpr std::size_t most_validation_batches = 64;

//! Prints the mean loss and the speed since the last report.
class progress
{
public:
  progress(int num_steps, int characters_per_step)
      : num_steps_{num_steps}, characters_per_step_{characters_per_step}
  {
  }
  void step(int done, double loss, double seconds)
  {
    sum_ += loss;
    if (reports_due(done) == reports_due(done - 1)) { return; }
    const int steps = done - reported_;
    const double speed = steps * characters_per_step_ / (seconds - reported_seconds_);
    std::printf("  step %5d of %d   loss %.4f   %6.0f characters/s\n", done, num_steps_,
                sum_ / steps, speed);
    std::fflush(stdout);
    reported_ = done;
    reported_seconds_ = seconds;
    sum_ = 0;
  }

private:
  [[nodiscard]] std::int64_t reports_due(int done) const
  {
    return std::int64_t{num_reports} * done / num_steps_;
  }

  int num_steps_;
  int characters_per_step_;
  int reported_ = 0;
  double reported_seconds_ = 0;
  double sum_ = 0;
};

void check_gradients(routed_residual& residual, int step)
{
  const routing_errors errors = check_routing(residual);
  // Written so that NaN fails.
  if (!(errors.largest() <= error_limit)) {
    std::array<char, 160> words{};
    std::snprintf(
        words.data(), words.size(),
        "the routing of step %d differs from the reference: outputs by %.1e, gradients of "
        "rows %.1e, queries %.1e, norms %.1e",
        step, errors.inputs, errors.rows, errors.queries, errors.norms);
    throw wrong_gradients(words.data());
  }
  std::printf(
      "  step %5d: routing and its gradients are within %.1e of the reference (limit %.0e)\n", step,
      errors.largest(), error_limit);
}

//! Adds the depth weights of the last forward, which training does not keep: every call again,
//! alone.
void add_weights(const executor& run, routed_residual& residual, depth_map& map)
{
  const mhar::shape extent = residual.extent();
  for (int call = 0; call < residual.num_calls(); ++call) {
    std::vector<float> weights(
        static_cast<std::size_t>(extent.num_positions * extent.num_heads * (call + 1)));
    mhar::route_problem<float> problem;
    problem.extent = extent;
    problem.num_rows = call + 1;
    problem.rows = residual.rows();
    problem.site = residual.site(call);
    problem.outputs.weights = weights.data();
    mhar::cpu::context context{run};
    std::vector<std::byte> workspace(mhar::cpu::workspace_bytes(problem, context));
    context.workspace = workspace.data();
    context.workspace_bytes = workspace.size();
    mhar::check(mhar::cpu::route(problem, context));
    map.add(call, {weights.data(), extent.num_positions, extent.num_heads, call + 1});
  }
}

//! The mean loss over the validation text, or over pieces spread evenly over a long one. Routed
//! schemes get their map on the way.
template <class Residual>
void validate(const executor& run, const training_plan& plan, const corpus& texts,
              model<Residual>& trained, Residual& residual, training_result& result)
{
  const auto positions = static_cast<std::size_t>(plan.shape.num_positions());
  const std::size_t available = (texts.validation.size() - 1) / positions;
  const std::size_t num_batches = std::min(available, most_validation_batches);
  double sum = 0;
  for (std::size_t i = 0; i < num_batches; ++i) {
    const std::size_t start = i * available / num_batches * positions;
    sum += trained.forward(
        batch_at(texts.validation, start, plan.shape.num_sequences, plan.shape.context));
    if constexpr (std::is_same_v<Residual, routed_residual>) {
      add_weights(run, residual, *result.map);
    }
  }
  result.validation_loss = sum / static_cast<double>(num_batches);
}

template <class Residual>
void train(const executor& run, const training_plan& plan, const corpus& texts, Residual& residual,
           training_result& result)
{
  model<Residual> trained{run, plan.shape, residual, plan.seed};
  adamw optimiser{trained.parameters()};
  batch_sampler sampler{texts.training, plan.seed};
  progress report{plan.num_steps, plan.shape.num_sequences * plan.shape.context};
  stopwatch watch;
  for (int step = 0; step < plan.num_steps; ++step) {
    double loss = 0;
    {
      const stopwatch::lap lap{watch};
      const batch text = sampler.next(plan.shape.num_sequences, plan.shape.context);
      loss = trained.forward(text);
      trained.backward(text);
    }
    if constexpr (std::is_same_v<Residual, routed_residual>) {
      if (step == plan.num_steps / 2) { check_gradients(residual, step + 1); }
    }
    {
      const stopwatch::lap lap{watch};
      optimiser.step(learning_rate(step, plan.num_steps, peak_learning_rate));
    }
    report.step(step + 1, loss, watch.seconds());
  }
  result.seconds = watch.seconds();
  result.routing_seconds = residual.seconds();
  validate(run, plan, texts, trained, residual, result);
  std::printf("  validation loss %.6f\n\n", result.validation_loss);
}

}  // namespace

training_result train_plain(const executor& run, const training_plan& plan, const corpus& texts)
{
  training_result result;
  result.name = "plain residual";
  plain_residual residual{plan.shape.stack()};
  train(run, plan, texts, residual, result);
  return result;
}

training_result train_routed(const executor& run, const training_plan& plan, const corpus& texts,
                             int num_heads)
{
  training_result result;
  result.name = num_heads == 1 ? "single-head routing"
                               : "routing with " + std::to_string(num_heads) + " heads";
  result.map = depth_map{plan.shape.num_calls(), num_heads};
  routed_residual residual{run, plan.shape.stack(), num_heads};
  train(run, plan, texts, residual, result);
  return result;
}

}  // namespace quickstart
