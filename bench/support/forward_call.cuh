// SPDX-License-Identifier: Apache-2.0
//! One forward call of a given shape over random rows: bfloat16 rows, float parameters, norm weight, lse.
#pragma once

#include "support/device_data.cuh"
#include "support/shapes.hpp"

#include <mhar/device/route.cuh>

namespace mhar_bench {

class forward_call
{
public:
  explicit forward_call(const call_shape& shape)
      : shape_{shape},
        rows_{shape.num_sources * elements()},
        y_{elements()},
        lse_{shape.num_positions * shape.num_heads},
        query_{shape.width, 0.02f},
        norm_weight_{shape.width}
  {
  }

  void run(const mhar::device::context& context) const
  {
    mhar::route_problem<mhar::bfloat16> problem;
    problem.extent = {shape_.num_positions, shape_.width, shape_.num_heads, 0};
    problem.num_rows = shape_.num_sources;
    problem.rows =
        mhar::source_major<mhar::bfloat16>(rows_.data(), shape_.num_positions, shape_.width);
    problem.site.query = query_.data();
    problem.site.norm_weight = norm_weight_.data();
    problem.outputs.y = {y_.data(), shape_.width};
    problem.outputs.lse = lse_.data();
    mhar::check(mhar::device::route(problem, context));
  }

  //! Every row read once, y and lse written.
  [[nodiscard]] double bytes() const
  {
    return static_cast<double>((shape_.num_sources + 1) * elements() * 2 +
                               shape_.num_positions * shape_.num_heads * 4 +
                               std::int64_t{8} * shape_.width);
  }

private:
  [[nodiscard]] std::int64_t elements() const { return shape_.num_positions * shape_.width; }

  call_shape shape_;
  device_array<mhar::bfloat16> rows_;
  device_array<mhar::bfloat16> y_;
  device_array<float> lse_;
  device_array<float> query_;
  device_array<float> norm_weight_;
};

}  // namespace mhar_bench
