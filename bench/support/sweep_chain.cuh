// SPDX-License-Identifier: Apache-2.0
//! Every routing call of a microbatch, through the router, over given rows and given do: the
//! traffic of a model's routing without the model.
#pragma once

#include "support/device_data.cuh"
#include "support/device_sweep.cuh"
#include "support/shapes.hpp"

#include <mhar/device/backend.cuh>
#include <mhar/router/depth_router.hpp>

#include <cmath>
#include <vector>

namespace mhar_bench {

//! Full mode: call c reads rows 0 to c. States are kept in the rows' type; do lies in the router's slots.
//! Where an output norm follows, o is kept, too, for the backward.
template <class Element>
class sweep_chain
{
public:
  using element = Element;
  using router = mhar::depth_router<mhar::device::backend, element>;

  explicit sweep_chain(const chain_shape& shape)
      : shape_{shape},
        elements_{shape.num_positions * shape.width},
        query_{shape.num_calls * shape.width,
               0.7f / std::sqrt(float(shape.width / shape.num_heads))},
        norm_weight_{shape.num_calls * shape.width},
        gradients_{2 * shape.num_calls * shape.width},
        output_gradients_{shape.output_norm ? shape.num_calls * shape.width : 0},
        y_{shape.num_calls * elements_},
        combined_{shape.output_norm ? shape.num_calls * elements_ : 0},
        row_gradients_{shape.num_calls * elements_},
        config_{configure()},
        router_{config_},
        block_{static_cast<std::int64_t>(router_.memory().total / sizeof(element))}
  {
    mhar::check(router_.bind(block_.data(), router_.memory().total));
    for (int c = 0; c < shape.num_calls; ++c) {
      mhar::site_gradients wanted;
      wanted.query = mhar::array{query_gradient(c)};
      wanted.norm_weight = mhar::array{norm_weight_gradient(c)};
      if (shape.output_norm) {
        wanted.output_norm_weight = mhar::array{output_gradients_.data() + c * shape.width};
      }
      wanted_.push_back(wanted);
    }
  }

  //! A producer that leaves rows, or do, as they lie in the block.
  struct leave
  {
    void operator()(int, void*) const {}
  };

  //! Parameters are folded; produce(c, row) writes row c, [P, d], before the first call that reads it.
  template <class Producer = leave>
  void forward(const mhar::device::context& where, Producer produce = {})
  {
    mhar::check(router_.begin_forward(where));
    for (int c = 0; c < shape_.num_calls; ++c) {
      produce(c, router_.append());
      mhar::route_outputs<element> outputs;
      outputs.y = {y_.data() + c * elements_, shape_.width};
      if (shape_.output_norm) {
        outputs.combined = {combined_.data() + c * elements_, shape_.width};
      }
      mhar::check(router_.route(where, c, {}, outputs));
    }
  }

  //! After a forward. All gradients: of the rows, and of q and g of every call; produce(c, do) writes do of call c, [P, d].
  template <class Producer = leave>
  void backward(const mhar::device::context& where, Producer produce = {})
  {
    mhar::check(router_.begin_backward(where));
    for (int c = shape_.num_calls - 1; c >= 0; --c) {
      mhar::call_upstream upstream;
      const mhar::matrix slot = router_.gradient_slot(c);
      produce(c, slot.data);
      upstream.output_gradient = slot;
      // Without gate and partial o is the mix.
      const device_array<element>& mixes = shape_.output_norm ? combined_ : y_;
      upstream.mix = {static_cast<const element*>(mixes.data() + c * elements_), shape_.width};
      if (shape_.output_norm) { upstream.combined = upstream.mix; }
      mhar::check(router_.backward_call(where, c, upstream));
      mhar::check(router_.row_gradient(
          where, c, mhar::matrix{row_gradients_.data() + c * elements_, shape_.width}));
    }
    mhar::check(router_.finish_backward(where, wanted_.data()));
  }

  //! @name On the device: q and g of every call, [S, d]; what was computed, [P, d] and [d]
  //! @{
  [[nodiscard]] float* queries() const { return query_.data(); }
  [[nodiscard]] float* norm_weights() const { return norm_weight_.data(); }
  [[nodiscard]] const element* output(int call) const { return y_.data() + call * elements_; }
  [[nodiscard]] const element* row_gradient(int row) const
  {
    return row_gradients_.data() + row * elements_;
  }
  [[nodiscard]] float* query_gradient(int call) const
  {
    return gradients_.data() + 2 * call * shape_.width;
  }
  [[nodiscard]] float* norm_weight_gradient(int call) const
  {
    return query_gradient(call) + shape_.width;
  }
  //! @}

  //! What the plan says the passes move; D, inverse rms and lse besides are below 3%.
  [[nodiscard]] double forward_bytes() const
  {
    return static_cast<double>(config_.plan.forward.bytes(costs_.forward)) +
           (shape_.output_norm ? 1 : 0) * row_bytes() * shape_.num_calls;
  }
  //! With an output norm do has a kernel of its own, which reads dy and o: the pass behind it needs
  //! no mix.
  [[nodiscard]] double backward_bytes() const
  {
    return static_cast<double>(config_.plan.backward.bytes(costs_.backward)) +
           (shape_.output_norm ? 3 : 1) * row_bytes() * shape_.num_calls;
  }
  //! Distinct memory of a sweep, and what the router needs beyond rows and outputs.
  [[nodiscard]] double footprint() const
  {
    return static_cast<double>(router_.memory().total) +
           (shape_.output_norm ? 3 : 2) * row_bytes() * shape_.num_calls;
  }
  [[nodiscard]] double peak_bytes() const
  {
    return static_cast<double>(router_.memory().total - router_.memory().rows);
  }

private:
  [[nodiscard]] double row_bytes() const
  {
    return static_cast<double>(elements_) * sizeof(element);
  }

  [[nodiscard]] mhar::router_config configure()
  {
    const mhar::shape extent{shape_.num_positions, shape_.width, shape_.num_heads};
    constexpr mhar::element type = mhar::element_of<element>::value;
    costs_ = mhar::gpu_costs_of(extent, type, type, type);
    mhar::router_config config;
    config.extent = extent;
    config.plan = mhar::cheapest_plan(mhar::full_schedule(shape_.num_calls), costs_);
    config.call_state = config.row_state = type;
    for (int c = 0; c < shape_.num_calls; ++c) {
      mhar::router_site site;
      site.parameters.query = static_cast<const float*>(query_.data() + c * shape_.width);
      site.parameters.norm_weight =
          static_cast<const float*>(norm_weight_.data() + c * shape_.width);
      if (shape_.output_norm) {
        site.stage.norm = mhar::output_norm::rms;
        site.stage.norm_weight = site.parameters.norm_weight;
      }
      config.sites.push_back(site);
    }
    return config;
  }

  chain_shape shape_;
  std::int64_t elements_;
  device_array<float> query_;
  device_array<float> norm_weight_;
  device_array<float> gradients_;
  device_array<float> output_gradients_;
  device_array<element> y_;
  device_array<element> combined_;
  device_array<element> row_gradients_;
  mhar::plan_costs costs_;
  mhar::router_config config_;
  router router_;
  device_array<element> block_;
  std::vector<mhar::site_gradients> wanted_;
};

}  // namespace mhar_bench
