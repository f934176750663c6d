// SPDX-License-Identifier: Apache-2.0
//! How far the chains' outputs and gradients are from the float64 reference, at full size. do is zero but at a few positions, so
//! that sums over positions are sums over these few, and the reference needs no others.
#include "support/device_limits.cuh"
#include "support/exact_chain.hpp"
#include "support/sweep_chain.cuh"

#include <string>

namespace {

using mhar_bench::chain_shape;
using mhar_bench::check_cuda;

constexpr std::int64_t num_positions = 32;  // as bench/peers/errors.py

//! Every so many positions of [P, d] on the device against [num_positions, d] on the host.
template <class T>
class few_positions
{
public:
  explicit few_positions(const chain_shape& shape)
      : pitch_{static_cast<std::size_t>(shape.num_positions / num_positions * shape.width) *
               sizeof(T)},
        bytes_{static_cast<std::size_t>(shape.width) * sizeof(T)},
        values_(static_cast<std::size_t>(num_positions * shape.width))
  {
  }
  //! In the order of the stream; zero everywhere else.
  void upload(void* to, std::int64_t all_positions, const T* from, cudaStream_t stream) const
  {
    check_cuda(cudaMemsetAsync(to, 0, static_cast<std::size_t>(all_positions) * bytes_, stream));
    check_cuda(cudaMemcpy2DAsync(to, pitch_, from, bytes_, bytes_, num_positions,
                                 cudaMemcpyHostToDevice, stream));
  }
  //! The next download takes its place.
  [[nodiscard]] const T* download(const T* from)
  {
    check_cuda(cudaMemcpy2D(values_.data(), bytes_, from, pitch_, bytes_, num_positions,
                            cudaMemcpyDeviceToHost));
    return values_.data();
  }

private:
  std::size_t pitch_;
  std::size_t bytes_;
  std::vector<T> values_;
};

template <class T>
void accuracy(benchmark::State& state, const chain_shape& shape)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  chain_shape few = shape;
  few.num_positions = num_positions;
  const mhar_bench::exact_chain<T> exact{few};
  mhar_bench::sweep_chain<T> work{shape};
  few_positions<T> chosen{shape};

  const auto parameters = [&](float* to, const std::vector<float>& from) {
    check_cuda(cudaMemcpy(to, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice));
  };
  parameters(work.queries(), exact.queries());
  parameters(work.norm_weights(), exact.norm_weights());
  const mhar_bench::bench_stream stream;
  const mhar::device::context where{stream.get()};
  for (auto step : state) {
    // Rows could be anything at the other positions; zero is as good.
    work.forward(where, [&](int row, void* to) {
      chosen.upload(to, shape.num_positions, exact.row(row), stream.get());
    });
    work.backward(where, [&](int call, void* to) {
      chosen.upload(to, shape.num_positions, exact.upstream(call), stream.get());
    });
    check_cuda(cudaStreamSynchronize(stream.get()));
  }

  const auto outputs = mhar::reference::route_chain(exact.problem());
  const auto gradients = mhar::reference::route_chain_gradient(exact.problem());
  double output_error = 0;
  mhar_bench::gradient_errors errors;
  std::vector<float> parameter(static_cast<std::size_t>(shape.width));
  const auto add_parameter = [&](const float* from, const mhar::reference::table& expected) {
    check_cuda(cudaMemcpy(parameter.data(), from, parameter.size() * sizeof(float),
                          cudaMemcpyDeviceToHost));
    errors.add(mhar_bench::relative_error(parameter.data(), expected));
  };
  for (int c = 0; c < shape.num_calls; ++c) {
    const auto& site = gradients.sites[static_cast<std::size_t>(c)];
    const auto index = static_cast<std::size_t>(c);
    output_error = (std::max)(output_error, mhar_bench::relative_error(
                                                chosen.download(work.output(c)), outputs[index].y));
    errors.add(
        mhar_bench::relative_error(chosen.download(work.row_gradient(c)), gradients.rows[index]));
    // The softmax of a call with one row is constant.
    if (c == 0) { continue; }
    add_parameter(work.query_gradient(c), site.query);
    add_parameter(work.norm_weight_gradient(c), site.norm_weight);
  }
  state.counters["output_error"] = output_error;
  state.counters["gradient_error"] = errors.mean();
  state.counters["gradient_error_max"] = errors.largest();
}

template <class T>
void add(const std::string& name, const chain_shape& shape)
{
  benchmark::RegisterBenchmark(name.c_str(), accuracy<T>, shape)
      ->Iterations(1)
      ->Repetitions(1)
      ->Unit(benchmark::kMillisecond);
}

const bool registered = [] {
  for (const chain_shape& shape : mhar_bench::chain_shapes) {
    const std::string scale = std::string{shape.name}.substr(std::string{"chain/"}.size());
    if (scale != "100M" && scale != "350M" && scale != "1B") { continue; }
    add<mhar::bfloat16>("accuracy/" + scale, shape);
    add<float>("accuracy/" + scale + "/fp32", shape);
    if (scale == "1B") { add<mhar::float16>("accuracy/" + scale + "/float16", shape); }
  }
  return true;
}();

}  // namespace
