// SPDX-License-Identifier: Apache-2.0
//! A model of your own around depth_router: a whole stack in full mode, forward and backward,
//! checked by finite differences.
//!
//! The model is the smallest one with depth: sublayer c computes tanh(scale[c] * input c), and
//! every input is a routing call over everything written before. The loss is <last input,
//! direction>. In double, so that the check is sharp.
#include <mhar/cpu/aligned_memory.hpp>
#include <mhar/cpu/backend.hpp>
#include <mhar/router/depth_router.hpp>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

using numbers = std::vector<double>;

std::mt19937 engine{1};

numbers random_numbers(std::size_t count)
{
  std::normal_distribution<double> normal;
  numbers result(count);
  for (double& number : result) { number = normal(engine); }
  return result;
}

class deep_model
{
public:
  deep_model() : router_{configure()}, memory_{router_.memory().total}
  {
    mhar::check(router_.bind(memory_.data(), memory_.size()));
  }

  double forward()
  {
    mhar::check(router_.begin_forward(context_));
    // Whoever makes a row writes it where the router keeps it.
    double* row = router_.append();
    for (std::size_t i = 0; i < row_size; ++i) { row[i] = embedding[i]; }
    for (int call = 0; call < num_calls; ++call) {
      mhar::route_outputs<double> outputs;
      outputs.y = {input(call), width};
      mhar::check(router_.route(context_, call, {}, outputs));
      if (call == num_calls - 1) { break; }
      row = router_.append();
      for (std::size_t i = 0; i < row_size; ++i) {
        row[i] = std::tanh(scale(call, i) * input(call)[i]);
      }
    }
    double loss = 0;
    for (std::size_t i = 0; i < row_size; ++i) { loss += direction_[i] * input(num_calls - 1)[i]; }
    return loss;
  }

  void backward()
  {
    mhar::check(router_.begin_backward(context_));
    numbers row_gradient(row_size);
    for (int call = num_calls - 1; call >= 0; --call) {
      // The gradient of this call's output: of the loss for the last one, else through the sublayer
      // that read it.
      auto* const gradient = static_cast<double*>(router_.gradient_slot(call).data);
      for (std::size_t i = 0; i < row_size; ++i) {
        if (call == num_calls - 1) {
          gradient[i] = direction_[i];
          continue;
        }
        const double written = router_.row(call + 1)[i];
        gradient[i] = row_gradient[i] * scale(call, i) * (1 - written * written);
      }
      mhar::call_upstream upstream;
      upstream.output_gradient = {gradient, width};
      upstream.mix = {input(call), width};
      mhar::check(router_.backward_call(context_, call, upstream));
      // Row `call` has been read by calls `call` and later, all of which have reported by now.
      mhar::check(router_.row_gradient(context_, call, {row_gradient.data(), width}));
    }
    embedding_gradient = row_gradient;

    std::vector<mhar::site_gradients> gradients(num_calls);
    for (std::size_t call = 0; call < num_calls; ++call) {
      gradients[call].query = &query_gradient[call * width];
      gradients[call].norm_weight = &norm_gradient[call * width];
    }
    mhar::check(router_.finish_backward(context_, gradients.data()));
  }

  static constexpr int num_calls = 9;  // eight sublayers and the output
  static constexpr int width = 12;
  static constexpr int num_positions = 5;
  static constexpr std::size_t row_size = std::size_t{num_positions} * width;

  numbers embedding = random_numbers(row_size);
  numbers queries =
      random_numbers(num_calls * width);  // zeros when training starts; here something to see
  numbers norms = numbers(num_calls * width, 1);
  numbers embedding_gradient;
  numbers query_gradient = numbers(num_calls * width);
  numbers norm_gradient = numbers(num_calls * width);

private:
  mhar::router_config configure() const
  {
    mhar::router_config config;
    config.extent = {num_positions, width, 3};
    const mhar::element type = mhar::element::float64;
    config.call_state = type;
    config.row_state = type;
    config.plan = mhar::cheapest_plan(mhar::full_schedule(num_calls),
                                      mhar::costs_of(config.extent, type, type, type));
    for (std::size_t call = 0; call < num_calls; ++call) {
      mhar::router_site site;
      site.parameters.query = &queries[call * width];
      site.parameters.norm_weight = &norms[call * width];
      config.sites.push_back(site);
    }
    return config;
  }

  double* input(int call) { return &inputs_[static_cast<std::size_t>(call) * row_size]; }
  [[nodiscard]] double scale(int call, std::size_t element) const
  {
    return scales_[static_cast<std::size_t>(call) * width + element % width];
  }

  mhar::cpu::context context_;  // no threads: everything runs where it is called
  mhar::depth_router<mhar::cpu::backend, double> router_;
  mhar::cpu::aligned_memory memory_;
  numbers scales_ = random_numbers(num_calls * width);
  numbers direction_ = random_numbers(row_size);
  numbers inputs_ = numbers(num_calls * row_size);
};

//! Prints the gradient of one number beside the slope of the loss there; returns whether they
//! agree.
bool slope_agrees(deep_model& model, const char* name, double& number, double gradient)
{
  constexpr double step = 1e-4;
  const double before = number;
  number = before + step;
  const double above = model.forward();
  number = before - step;
  const double below = model.forward();
  number = before;
  const double slope = (above - below) / (2 * step);
  std::printf("%-24s %14.9f %14.9f\n", name, gradient, slope);
  return std::abs(slope - gradient) < 1e-6 * (1 + std::abs(gradient));
}

}  // namespace

int main()
{
  deep_model model;
  std::printf("loss %.9f\n\n", model.forward());
  model.backward();
  std::printf("%-24s %14s %14s\n", "gradient of", "router", "differences");
  const std::size_t last = (deep_model::num_calls - 1) * deep_model::width;
  bool fine = slope_agrees(model, "embedding[0]", model.embedding[0], model.embedding_gradient[0]);
  fine &= slope_agrees(model, "query of call 1, [5]", model.queries[deep_model::width + 5],
                       model.query_gradient[deep_model::width + 5]);
  fine &=
      slope_agrees(model, "query of call 8, [0]", model.queries[last], model.query_gradient[last]);
  fine &= slope_agrees(model, "norm of call 8, [11]", model.norms[last + 11],
                       model.norm_gradient[last + 11]);
  return fine ? 0 : 1;
}
