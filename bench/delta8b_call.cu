// SPDX-License-Identifier: Apache-2.0
//! delta8B/call: the 64 routing calls of an 8B model in delta mode, one call at a time: forward,
//! forward again (activations are recomputed), backward with row gradients added up in bfloat16.
#include "support/device_data.cuh"
#include "support/device_limits.cuh"

#include <mhar/device/route.cuh>
#include <mhar/device/route_gradient.cuh>

namespace {

constexpr int num_calls = 64;
constexpr int num_rows = 8;
constexpr mhar::shape extent{8192, 4096, 8, 0};
constexpr std::int64_t elements = extent.num_positions * extent.width;

using row = mhar::bfloat16;
using mhar_bench::device_array;

//! All calls work on the same arrays: between two uses of one of them, half a gigabyte of rows has
//! passed the L2 cache.
class delta_calls
{
public:
  void forward(const mhar::device::context& context, bool saves) const
  {
    mhar::route_problem<row> problem;
    describe(problem);
    problem.outputs.y = {y_.data(), extent.width};
    if (saves) {
      problem.outputs.mix = {mix_.data(), extent.width};
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

  //! Matrices of bfloat16 that must move per call: rows, partial and y twice, the mix once; then
  //! rows, dy, mix, and the row gradients read and written.
  [[nodiscard]] static double bytes()
  {
    const double matrices = 2 * (num_rows + 2) + 1 + (num_rows + 2 + 2 * num_rows);
    const double statistics = 2.0 * extent.num_positions * (extent.num_heads + num_rows) * 4;
    return num_calls * (matrices * static_cast<double>(elements) * 2 + statistics);
  }

private:
  static constexpr std::size_t workspace_bytes = std::size_t{64} << 20;

  template <class Problem>
  void describe(Problem& problem) const
  {
    problem.extent = extent;
    problem.num_rows = num_rows;
    problem.rows = mhar::source_major<row>(rows_.data(), extent.num_positions, extent.width);
    problem.site.query = query_.data();
    problem.site.norm_weight = norm_weight_.data();
    problem.site.null_source = null_source_.data();
    problem.stage.partial = {partial_.data(), extent.width};
    problem.stage.gate = gate_.data();
  }
  [[nodiscard]] mhar::route_gradient_problem<row> gradient_problem() const
  {
    mhar::route_gradient_problem<row> problem;
    describe(problem);
    problem.output_gradient = {upstream_.data(), extent.width};
    problem.lse = lse_.data();
    problem.inverse_rms = inverse_rms_.data();
    problem.mix = {mix_.data(), extent.width};
    problem.row_gradients.base = row_gradients_.data();
    problem.row_gradients.type = mhar::element::bfloat16;
    problem.row_gradients.row_stride = elements;
    problem.row_gradients.position_stride = extent.width;
    problem.row_gradients.mode = mhar::update::accumulate;
    problem.gradients.query = query_gradient_.data();
    problem.gradients.norm_weight = norm_weight_gradient_.data();
    problem.gradients.null_source = null_source_gradient_.data();
    problem.gradients.gate = gate_gradient_.data();
    return problem;
  }

  device_array<row> rows_{num_rows * elements};
  device_array<row> partial_{elements};
  device_array<row> upstream_{elements, 1e-3f};
  device_array<row> y_{elements};
  device_array<row> mix_{elements};
  device_array<row> row_gradients_{num_rows * elements, 1e-3f};
  device_array<float> lse_{extent.num_positions * extent.num_heads};
  device_array<float> inverse_rms_{extent.num_positions * num_rows};
  device_array<float> query_{extent.width, 0.02f};
  device_array<float> norm_weight_{extent.width};
  device_array<float> null_source_{extent.width, 0.1f};
  device_array<float> gate_{1};
  device_array<float> query_gradient_{extent.width};
  device_array<float> norm_weight_gradient_{extent.width};
  device_array<float> null_source_gradient_{extent.width};
  device_array<float> gate_gradient_{1};
  device_array<float> workspace_{static_cast<std::int64_t>(workspace_bytes / sizeof(float))};
};

void delta8b_call(benchmark::State& state)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  const delta_calls calls;
  const mhar_bench::bench_stream stream;
  const mhar::device::context context{stream.get()};
  const mhar_bench::device_graph graph{stream.get(), [&] {
                                         for (int call = 0; call < num_calls; ++call) {
                                           calls.forward(context, false);
                                         }
                                         for (int call = 0; call < num_calls; ++call) {
                                           calls.forward(context, true);
                                           calls.backward(context);
                                         }
                                       }};
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get()};
    graph.launch(stream.get());
  }
  mhar_bench::report(state, delta_calls::bytes(), delta_calls::bytes(),
                     mhar_bench::device_limits());
}

BENCHMARK(delta8b_call)->Name("delta8B/call")->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
