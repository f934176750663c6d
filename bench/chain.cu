// SPDX-License-Identifier: Apache-2.0
//! Chains: every routing call of a microbatch, forward and backward, replayed from a CUDA graph.
#include "support/device_limits.cuh"
#include "support/sweep_chain.cuh"

#include <string>

namespace {

using mhar_bench::chain_shape;
using mhar_bench::sweep_chain;

enum class part
{
  both,
  forward,
  backward
};

template <class Element>
void chain(benchmark::State& state, const chain_shape& shape, part which)
{
  if (!mhar_bench::has_gpu(state)) { return; }
  sweep_chain<Element> work{shape};
  const mhar_bench::bench_stream stream;
  const mhar::device::context where{stream.get(), nullptr, 0,
                                    mhar::device::dependent_launch::programmatic};
  // The backward reads what a forward has left; the router wants them in order.
  work.forward(where);
  work.backward(where);
  mhar_bench::check_cuda(cudaStreamSynchronize(stream.get()));
  if (which == part::backward) { work.forward(where); }
  const mhar_bench::device_graph graph{stream.get(), [&] {
                                         if (which != part::backward) { work.forward(where); }
                                         if (which != part::forward) { work.backward(where); }
                                       }};
  for (auto step : state) {
    const mhar_bench::event_timer timer{state, stream.get()};
    graph.launch(stream.get());
  }
  const double bytes = (which != part::backward ? work.forward_bytes() : 0) +
                       (which != part::forward ? work.backward_bytes() : 0);
  mhar_bench::report(state, bytes, work.footprint(), mhar_bench::device_limits());
  state.counters["peak_bytes"] = work.peak_bytes();
}

const bool registered = [] {
  const auto add = [](const std::string& name, const chain_shape& shape, auto run) {
    const auto add_part = [&](const std::string& full, part which) {
      benchmark::RegisterBenchmark(full.c_str(), run, shape, which)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    };
    add_part(name, part::both);
    add_part(name + "/forward", part::forward);
    add_part(name + "/backward", part::backward);
  };
  for (const chain_shape& shape : mhar_bench::chain_shapes) {
    const std::string name = shape.name;
    add(name, shape, chain<mhar::bfloat16>);
    if (name == "chain/1B") { add(name + "/float16", shape, chain<mhar::float16>); }
  }
  add(mhar_bench::normed_chain.name, mhar_bench::normed_chain, chain<mhar::bfloat16>);
  return true;
}();

}  // namespace
