// SPDX-License-Identifier: Apache-2.0
//! The residual stream replaced by routing over depth.
#include "routed_residual.hpp"

namespace quickstart {

routed_residual::routed_residual(const executor& run, const stack_shape& shape, int num_heads)
    : context_{run},
      queries_(index(shape.num_calls), parameter{1, shape.width, 0}),
      norms_(index(shape.num_calls), parameter{1, shape.width, 1}),
      router_{configure(shape, num_heads)},
      memory_{router_.memory().total},
      rows_(index(shape.num_calls)),
      input_gradients_(index(shape.num_calls)),
      inputs_{shape},
      row_gradients_{shape}
{
  mhar::check(router_.bind(memory_.data(), memory_.size()));
}

mhar::site_parameters routed_residual::site(int call) const
{
  mhar::site_parameters parameters;
  parameters.query = queries_[index(call)].value.data();
  parameters.norm_weight = norms_[index(call)].value.data();
  return parameters;
}

mhar::router_config routed_residual::configure(const stack_shape& shape, int num_heads) const
{
  mhar::router_config config;
  config.extent = {shape.num_positions, shape.width, num_heads};
  const mhar::element type = mhar::element::float32;
  config.plan = mhar::cheapest_plan(mhar::full_schedule(shape.num_calls),
                                    mhar::costs_of(config.extent, type, type, type));
  for (int call = 0; call < shape.num_calls; ++call) { config.sites.push_back({site(call), {}}); }
  return config;
}

void routed_residual::begin_forward()
{
  const stopwatch::lap lap{watch_};
  mhar::check(router_.begin_forward(context_));
}

view routed_residual::row(int n)
{
  float* const place = router_.append();
  rows_[index(n)] = place;
  return {place, inputs_[n].rows(), inputs_[n].cols()};
}

void routed_residual::forward(int call)
{
  const stopwatch::lap lap{watch_};
  mhar::route_outputs<float> outputs;
  outputs.y = as_matrix(inputs_[call]);
  mhar::check(router_.route(context_, call, {}, outputs));
}

void routed_residual::begin_backward()
{
  const stopwatch::lap lap{watch_};
  mhar::check(router_.begin_backward(context_));
}

view routed_residual::input_gradient(int call)
{
  float*& place = input_gradients_[index(call)];
  const mhar::matrix slot = router_.gradient_slot(call);
  if (slot) { place = static_cast<float*>(slot.data); }
  return {place, inputs_[call].rows(), inputs_[call].cols()};
}

void routed_residual::backward(int call)
{
  const stopwatch::lap lap{watch_};
  mhar::call_upstream upstream;
  upstream.output_gradient = as_matrix(input_gradient(call));
  upstream.mix =
      as_matrix(inputs_[call]);  // with neither gate nor partial, what the call gave is the mix
  mhar::check(router_.backward_call(context_, call, upstream));
  mhar::check(router_.row_gradient(context_, call, as_matrix(row_gradients_[call])));
}

void routed_residual::finish_backward()
{
  const stopwatch::lap lap{watch_};
  std::vector<mhar::site_gradients> gradients(queries_.size());
  for (std::size_t call = 0; call < gradients.size(); ++call) {
    gradients[call].query = queries_[call].gradient.data();
    gradients[call].norm_weight = norms_[call].gradient.data();
  }
  mhar::check(router_.finish_backward(context_, gradients.data()));
}

std::vector<parameter*> routed_residual::parameters()
{
  std::vector<parameter*> all;
  for (parameter& query : queries_) { all.push_back(&query); }
  for (parameter& norm : norms_) { all.push_back(&norm); }
  return all;
}

}  // namespace quickstart
