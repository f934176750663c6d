// SPDX-License-Identifier: Apache-2.0
//! Every routing call of a microbatch, through the router, over given rows and given do: the
//! traffic of a model's routing without the model.
#pragma once

#include "support/device_data.cuh"
#include "support/shapes.hpp"

#include <mhar/device/backend.cuh>
#include <mhar/router/depth_router.hpp>

#include <cmath>
#include <vector>

namespace mhar_bench {

//! Full mode: call c reads rows 0 to c. States are kept in bfloat16; do lies in the router's slots.
class sweep_chain
{
public:
  using element = mhar::bfloat16;
  using router = mhar::depth_router<mhar::device::backend, element>;

  explicit sweep_chain(const chain_shape& shape)
      : shape_{shape},
        elements_{shape.num_positions * shape.width},
        query_{shape.num_calls * shape.width,
               0.7f / std::sqrt(float(shape.width / shape.num_heads))},
        norm_weight_{shape.num_calls * shape.width},
        gradients_{2 * shape.num_calls * shape.width},
        y_{shape.num_calls * elements_},
        row_gradients_{shape.num_calls * elements_},
        config_{configure()},
        router_{config_},
        block_{static_cast<std::int64_t>(router_.memory().total) / 2}
  {
    mhar::check(router_.bind(block_.data(), router_.memory().total));
    for (int c = 0; c < shape.num_calls; ++c) {
      mhar::site_gradients wanted;
      wanted.query = mhar::array{gradients_.data() + 2 * c * shape.width};
      wanted.norm_weight = mhar::array{gradients_.data() + (2 * c + 1) * shape.width};
      wanted_.push_back(wanted);
    }
  }

  //! Parameters are folded, rows taken as they lie in the block.
  void forward(const mhar::device::context& where)
  {
    mhar::check(router_.begin_forward(where));
    for (int c = 0; c < shape_.num_calls; ++c) {
      static_cast<void>(router_.append());
      mhar::route_outputs<element> outputs;
      outputs.y = {y_.data() + c * elements_, shape_.width};
      mhar::check(router_.route(where, c, {}, outputs));
    }
  }

  //! After a forward. All gradients: of the rows, and of q and g of every call.
  void backward(const mhar::device::context& where)
  {
    mhar::check(router_.begin_backward(where));
    for (int c = shape_.num_calls - 1; c >= 0; --c) {
      mhar::call_upstream upstream;
      upstream.output_gradient = router_.gradient_slot(c);
      upstream.mix = {static_cast<const element*>(y_.data() + c * elements_), shape_.width};
      mhar::check(router_.backward_call(where, c, upstream));
      mhar::check(router_.row_gradient(
          where, c, mhar::matrix{row_gradients_.data() + c * elements_, shape_.width}));
    }
    mhar::check(router_.finish_backward(where, wanted_.data()));
  }

  //! What the plan says the passes move; D, inverse rms and lse besides are below 3%.
  [[nodiscard]] double forward_bytes() const
  {
    return static_cast<double>(config_.plan.forward.bytes(costs_.forward));
  }
  [[nodiscard]] double backward_bytes() const
  {
    return static_cast<double>(config_.plan.backward.bytes(costs_.backward)) +
           2.0 * static_cast<double>(shape_.num_calls * elements_);
  }
  //! Distinct memory of a sweep, and what the router needs beyond rows and outputs.
  [[nodiscard]] double footprint() const
  {
    return static_cast<double>(router_.memory().total) +
           4.0 * static_cast<double>(shape_.num_calls * elements_);
  }
  [[nodiscard]] double peak_bytes() const
  {
    return static_cast<double>(router_.memory().total - router_.memory().rows);
  }

private:
  [[nodiscard]] mhar::router_config configure()
  {
    const mhar::shape extent{shape_.num_positions, shape_.width, shape_.num_heads};
    const auto type = mhar::element::bfloat16;
    costs_ = mhar::costs_of(extent, type, type, type, std::int64_t{10} << 20);
    costs_.max_members = 16;
    mhar::router_config config;
    config.extent = extent;
    config.plan = mhar::cheapest_plan(mhar::full_schedule(shape_.num_calls), costs_);
    config.call_state = config.row_state = type;
    for (int c = 0; c < shape_.num_calls; ++c) {
      mhar::router_site site;
      site.parameters.query = static_cast<const float*>(query_.data() + c * shape_.width);
      site.parameters.norm_weight =
          static_cast<const float*>(norm_weight_.data() + c * shape_.width);
      config.sites.push_back(site);
    }
    return config;
  }

  chain_shape shape_;
  std::int64_t elements_;
  device_array<float> query_;
  device_array<float> norm_weight_;
  device_array<float> gradients_;
  device_array<element> y_;
  device_array<element> row_gradients_;
  mhar::plan_costs costs_;
  mhar::router_config config_;
  router router_;
  device_array<element> block_;
  std::vector<mhar::site_gradients> wanted_;
};

}  // namespace mhar_bench
