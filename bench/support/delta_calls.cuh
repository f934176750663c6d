// SPDX-License-Identifier: Apache-2.0
//! Routing in delta mode one call at a time.
#pragma once

#include "support/device_data.cuh"

#include <mhar/device/route.cuh>
#include <mhar/device/route_gradient.cuh>

namespace mhar_bench {

//! All calls work on the same arrays: between two uses of one of them, several times what the L2
//! cache holds has passed it.
class delta_calls
{
public:
  static constexpr int num_rows = 8;

  explicit delta_calls(const mhar::shape& extent) : extent_{extent} {}

  void forward(const mhar::device::context& context, bool saves) const
  {
    mhar::route_problem<row> problem;
    describe(problem);
    problem.outputs.y = {y_.data(), extent_.width};
    if (saves) {
      problem.outputs.mix = {mix_.data(), extent_.width};
      problem.outputs.lse = lse_.data();
      problem.outputs.inverse_rms = inverse_rms_.data();
    }
    mhar::check(mhar::device::route(problem, context));
  }

  void backward(mhar::device::context context) const
  {
    mhar::route_gradient_problem<row> problem = gradient_problem();
    const std::size_t bytes = mhar::device::workspace_bytes(problem, context);
    if (bytes > workspace_bytes) { throw std::runtime_error("the workspace is too small"); }
    context.workspace = workspace_.data();
    context.workspace_bytes = bytes;
    mhar::check(mhar::device::route_gradient(problem, context));
  }

  //! Matrices of bfloat16 that must move per call: rows, partial and y `num_forwards` times, the
  //! mix once; then rows, dy, mix, and the row gradients read and written.
  [[nodiscard]] double bytes(int num_forwards) const
  {
    const double matrices = num_forwards * (num_rows + 2) + 1 + (num_rows + 2 + 2 * num_rows);
    const auto positions = static_cast<double>(extent_.num_positions);
    const double statistics = 2.0 * positions * (extent_.num_heads + num_rows) * 4;
    return matrices * static_cast<double>(elements_) * 2 + statistics;
  }

private:
  using row = mhar::bfloat16;

  static constexpr std::size_t workspace_bytes = std::size_t{256} << 20;

  template <class Problem>
  void describe(Problem& problem) const
  {
    problem.extent = extent_;
    problem.num_rows = num_rows;
    problem.rows = mhar::source_major<row>(rows_.data(), extent_.num_positions, extent_.width);
    problem.site.query = query_.data();
    problem.site.norm_weight = norm_weight_.data();
    problem.site.null_source = null_source_.data();
    problem.stage.partial = {partial_.data(), extent_.width};
    problem.stage.gate = gate_.data();
  }
  [[nodiscard]] mhar::route_gradient_problem<row> gradient_problem() const
  {
    mhar::route_gradient_problem<row> problem;
    describe(problem);
    problem.output_gradient = {upstream_.data(), extent_.width};
    problem.lse = lse_.data();
    problem.inverse_rms = inverse_rms_.data();
    problem.mix = {mix_.data(), extent_.width};
    problem.row_gradients.base = row_gradients_.data();
    problem.row_gradients.type = mhar::element::bfloat16;
    problem.row_gradients.row_stride = elements_;
    problem.row_gradients.position_stride = extent_.width;
    problem.row_gradients.mode = mhar::update::accumulate;
    problem.gradients.query = query_gradient_.data();
    problem.gradients.norm_weight = norm_weight_gradient_.data();
    problem.gradients.null_source = null_source_gradient_.data();
    problem.gradients.gate = gate_gradient_.data();
    return problem;
  }

  mhar::shape extent_;
  std::int64_t elements_ = extent_.num_positions * extent_.width;
  device_array<row> rows_{num_rows * elements_};
  device_array<row> partial_{elements_};
  device_array<row> upstream_{elements_, 1e-3f};
  device_array<row> y_{elements_};
  device_array<row> mix_{elements_};
  device_array<row> row_gradients_{num_rows * elements_, 1e-3f};
  device_array<float> lse_{extent_.num_positions * extent_.num_heads};
  device_array<float> inverse_rms_{extent_.num_positions * num_rows};
  device_array<float> query_{extent_.width, 0.02f};
  device_array<float> norm_weight_{extent_.width};
  device_array<float> null_source_{extent_.width, 0.1f};
  device_array<float> gate_{1};
  device_array<float> query_gradient_{extent_.width};
  device_array<float> norm_weight_gradient_{extent_.width};
  device_array<float> null_source_gradient_{extent_.width};
  device_array<float> gate_gradient_{1};
  device_array<float> workspace_{static_cast<std::int64_t>(workspace_bytes / sizeof(float))};
};

}  // namespace mhar_bench
