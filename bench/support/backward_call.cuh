// SPDX-License-Identifier: Apache-2.0
//! One backward call of a given shape over random rows: bfloat16 rows and row gradients, float
//! parameters, lse and mix given.
#pragma once

#include "support/device_data.cuh"
#include "support/shapes.hpp"

#include <mhar/device/route_gradient.cuh>

namespace mhar_bench {

class backward_call
{
public:
  explicit backward_call(const call_shape& shape)
      : shape_{shape},
        rows_{shape.num_sources * elements()},
        upstream_{elements()},
        mix_{elements()},
        row_gradients_{shape.num_sources * elements()},
        lse_{shape.num_positions * shape.num_heads},
        query_{shape.width, 0.02f},
        norm_weight_{shape.width},
        query_gradient_{shape.width},
        norm_weight_gradient_{shape.width},
        // No stream is asked how much memory is needed.
        workspace_bytes_{mhar::device::workspace_bytes(
            problem(), mhar::device::context{cuda::stream_ref{cudaStream_t{}}})},
        workspace_{static_cast<std::int64_t>(workspace_bytes_ / sizeof(float)) + 1}
  {
  }

  void run(mhar::device::context context) const
  {
    context.workspace = workspace_.data();
    context.workspace_bytes = workspace_bytes_;
    mhar::check(mhar::device::route_gradient(problem(), context));
  }

  //! Every row, do and mix read once, every row gradient written once.
  [[nodiscard]] double bytes() const
  {
    return static_cast<double>((2 * shape_.num_sources + 2) * elements() * 2 +
                               shape_.num_positions * shape_.num_heads * 4 +
                               std::int64_t{16} * shape_.width);
  }

private:
  [[nodiscard]] std::int64_t elements() const { return shape_.num_positions * shape_.width; }

  [[nodiscard]] mhar::route_gradient_problem<mhar::bfloat16> problem() const
  {
    mhar::route_gradient_problem<mhar::bfloat16> p;
    p.extent = {shape_.num_positions, shape_.width, shape_.num_heads, 0};
    p.num_rows = shape_.num_sources;
    p.rows = mhar::source_major<mhar::bfloat16>(rows_.data(), shape_.num_positions, shape_.width);
    p.site.query = query_.data();
    p.site.norm_weight = norm_weight_.data();
    p.output_gradient = {upstream_.data(), shape_.width};
    p.mix = {mix_.data(), shape_.width};
    p.lse = lse_.data();
    p.row_gradients.base = row_gradients_.data();
    p.row_gradients.type = mhar::element::bfloat16;
    p.row_gradients.row_stride = elements();
    p.row_gradients.position_stride = shape_.width;
    p.gradients.query = query_gradient_.data();
    p.gradients.norm_weight = norm_weight_gradient_.data();
    return p;
  }

  call_shape shape_;
  device_array<mhar::bfloat16> rows_;
  device_array<mhar::bfloat16> upstream_;
  device_array<mhar::bfloat16> mix_;
  device_array<mhar::bfloat16> row_gradients_;
  device_array<float> lse_;
  device_array<float> query_;
  device_array<float> norm_weight_;
  device_array<float> query_gradient_;
  device_array<float> norm_weight_gradient_;
  std::size_t workspace_bytes_;
  device_array<float> workspace_;
};

}  // namespace mhar_bench
