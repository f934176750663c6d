// SPDX-License-Identifier: Apache-2.0
//! All routing calls of one microbatch on the CPU, over given rows and given upstream gradients: by a sweep, and one call at a
//! time.
#pragma once

#include "support/host_random.hpp"
#include "support/shapes.hpp"

#include <mhar/cpu/backend.hpp>
#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>
#include <mhar/router/depth_router.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace mhar_bench {

//! T is the element of rows, mixes and gradients; parameters are float, kept states of the accumulation type.
template <class T>
class cpu_chain
{
public:
  using router_type = mhar::depth_router<mhar::cpu::backend, T>;

  cpu_chain(const chain_shape& shape, mhar::cpu::executor run)
      : extent_{shape.num_positions, shape.width, shape.num_heads, 0},
        num_calls_{shape.num_calls},
        run_{run},
        rows_(size()),
        upstream_(size()),
        mixes_(size()),
        row_gradients_(size()),
        lse_(static_cast<std::size_t>(num_calls_ * extent_.num_positions * extent_.num_heads)),
        queries_(static_cast<std::size_t>(num_calls_ * extent_.width)),
        norm_weights_(queries_.size()),
        query_gradients_(queries_.size()),
        norm_weight_gradients_(queries_.size()),
        router_{configure()},
        block_(router_.memory().total + 256)
  {
    fill_normal(rows_);
    fill_normal(upstream_);
    fill_normal(queries_, 0, 1.0f / std::sqrt(static_cast<float>(extent_.head_width())));
    fill_normal(norm_weights_, 1, 0.1f);
    const auto address = reinterpret_cast<std::uintptr_t>(block_.data());
    mhar::check(router_.bind(block_.data() + (256 - address % 256) % 256, router_.memory().total));
    workspace_.resize(
        std::max(workspace_bytes(route_problem(num_calls_ - 1), mhar::cpu::context{}),
                 workspace_bytes(gradient_problem(num_calls_ - 1), mhar::cpu::context{})));
    sweep_forward(producer::present);
    sweep_backward(producer::present);
  }

  void sweep_forward_again() { sweep_forward(producer::absent); }
  void sweep_backward_again() { sweep_backward(producer::absent); }

  void calls_forward()
  {
    for (int c = 0; c < num_calls_; ++c) {
      mhar::check(mhar::cpu::route(route_problem(c), context()));
    }
  }

  void calls_backward()
  {
    std::memset(row_gradients_.data(), 0, row_gradients_.size() * sizeof(T));
    for (int c = num_calls_ - 1; c >= 0; --c) {
      mhar::check(mhar::cpu::route_gradient(gradient_problem(c), context()));
    }
  }

private:
  //! Whether rows and upstream gradients are put where the router wants them, as their producers would, or lie there already.
  enum class producer
  {
    present,
    absent
  };

  void sweep_forward(producer rows)
  {
    mhar::check(router_.begin_forward(context()));
    for (int c = 0; c < num_calls_; ++c) {
      T* const row = router_.append();
      if (rows == producer::present) {
        std::memcpy(row, rows_.data() + c * matrix(), matrix_bytes());
      }
      mhar::route_outputs<T> outputs;
      outputs.mix = {mixes_.data() + c * matrix(), extent_.width};
      mhar::check(router_.route(context(), c, {}, outputs));
    }
  }

  void sweep_backward(producer gradients)
  {
    mhar::check(router_.begin_backward(context()));
    for (int c = num_calls_ - 1; c >= 0; --c) {
      const mhar::matrix slot = router_.gradient_slot(c);
      if (gradients == producer::present) {
        std::memcpy(slot.data, upstream_.data() + c * matrix(), matrix_bytes());
      }
      mhar::call_upstream given;
      given.output_gradient = slot;
      given.mix = {mixes_.data() + c * matrix(), extent_.width};
      mhar::check(router_.backward_call(context(), c, given));
      mhar::check(router_.row_gradient(context(), c,
                                       {row_gradients_.data() + c * matrix(), extent_.width}));
    }
    mhar::check(router_.finish_backward(context(), gradients_.data()));
  }

  [[nodiscard]] std::int64_t matrix() const { return extent_.num_positions * extent_.width; }
  [[nodiscard]] std::size_t matrix_bytes() const
  {
    return static_cast<std::size_t>(matrix()) * sizeof(T);
  }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(num_calls_ * matrix()); }
  [[nodiscard]] mhar::cpu::context context()
  {
    return {run_, workspace_.data(), workspace_.size()};
  }

  [[nodiscard]] mhar::site_parameters site(int c) const
  {
    mhar::site_parameters parameters;
    parameters.query = queries_.data() + c * extent_.width;
    parameters.norm_weight = norm_weights_.data() + c * extent_.width;
    return parameters;
  }

  [[nodiscard]] mhar::router_config configure()
  {
    constexpr mhar::element state = mhar::element_of<mhar::accumulate_t<T>>::value;
    mhar::router_config config;
    config.extent = extent_;
    config.plan =
        mhar::cheapest_plan(mhar::full_schedule(num_calls_),
                            mhar::costs_of(extent_, mhar::element_of<T>::value, state, state));
    config.call_state = config.row_state = state;
    for (int c = 0; c < num_calls_; ++c) {
      config.sites.push_back({site(c), {}});
      mhar::site_gradients wanted;
      wanted.query = query_gradients_.data() + c * extent_.width;
      wanted.norm_weight = norm_weight_gradients_.data() + c * extent_.width;
      gradients_.push_back(wanted);
    }
    return config;
  }

  [[nodiscard]] mhar::route_problem<T> route_problem(int c)
  {
    mhar::route_problem<T> problem;
    problem.extent = extent_;
    problem.num_rows = c + 1;
    problem.rows = mhar::source_major(rows_.data(), extent_.num_positions, extent_.width);
    problem.site = site(c);
    problem.outputs.mix = {mixes_.data() + c * matrix(), extent_.width};
    problem.outputs.lse = lse_.data() + c * extent_.num_positions * extent_.num_heads;
    return problem;
  }

  [[nodiscard]] mhar::route_gradient_problem<T> gradient_problem(int c)
  {
    const mhar::route_problem<T> forward = route_problem(c);
    mhar::route_gradient_problem<T> problem;
    problem.extent = extent_;
    problem.num_rows = c + 1;
    problem.rows = forward.rows;
    problem.site = forward.site;
    problem.output_gradient = {upstream_.data() + c * matrix(), extent_.width};
    problem.lse = forward.outputs.lse;
    problem.mix = forward.outputs.mix;
    problem.row_gradients.base = row_gradients_.data();
    problem.row_gradients.type = mhar::element_of<T>::value;
    problem.row_gradients.row_stride = matrix();
    problem.row_gradients.position_stride = extent_.width;
    problem.row_gradients.mode = mhar::update::accumulate;
    problem.gradients = gradients_[static_cast<std::size_t>(c)];
    return problem;
  }

  mhar::shape extent_;
  int num_calls_;
  mhar::cpu::executor run_;
  std::vector<T> rows_;
  std::vector<T> upstream_;
  std::vector<T> mixes_;
  std::vector<T> row_gradients_;
  std::vector<mhar::accumulate_t<T>> lse_;
  std::vector<float> queries_;
  std::vector<float> norm_weights_;
  std::vector<float> query_gradients_;
  std::vector<float> norm_weight_gradients_;
  std::vector<mhar::site_gradients> gradients_;
  router_type router_;
  std::vector<unsigned char> block_;
  std::vector<unsigned char> workspace_;
};

}  // namespace mhar_bench
