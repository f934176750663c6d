// SPDX-License-Identifier: Apache-2.0
//! A router and the CPU backend allocate nothing once the router is built, and neither do single calls.
#include <mhar/cpu/aligned_memory.hpp>
#include <mhar/cpu/backend.hpp>
#include <mhar/cpu/merge.hpp>
#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>
#include <mhar/router/depth_router.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace {

std::atomic<std::size_t> allocations{0};  // other tests of the program have threads

}  // namespace

// Of the whole program; the other forms of new come here.
[[gnu::noinline]] void* operator new(std::size_t bytes)
{
  ++allocations;
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) { throw std::bad_alloc{}; }
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("router: nothing is allocated after construction")
{
  constexpr int num_calls = 5;
  constexpr std::int64_t elements = 2 * 8;
  for (const auto home : {mhar::gradient_home::block, mhar::gradient_home::dead_rows}) {
    std::vector<float> numbers(8, 0.5f);
    std::vector<float> outputs(2 * num_calls * elements);
    mhar::router_config config;
    config.extent = {2, 8, 2};
    config.plan =
        mhar::custom_plan(mhar::full_schedule(num_calls), {5, 4, 3, 2, 1}, {1, 2, 1, 2, 1});
    config.sites.resize(num_calls);
    for (mhar::router_site& site : config.sites) {
      site.parameters.query = numbers.data();
      site.parameters.bias = numbers.data();
    }
    config.gradients = home;
    config.recompute_calls = 2;
    std::vector<mhar::site_gradients> gradients(num_calls);
    std::vector<float> query_gradient(8);
    gradients[2].query = query_gradient.data();
    mhar::depth_router<mhar::cpu::backend, float> router{config};
    std::vector<unsigned char> memory(router.memory().total + 256);
    void* block = memory.data();
    std::size_t space = memory.size();
    std::align(256, router.memory().total, block, space);
    float* const mixes = outputs.data() + num_calls * elements;

    const std::size_t before = allocations;
    mhar::check(router.bind(block, router.memory().total));
    mhar::check(router.begin_forward({}));
    for (int c = 0; c < num_calls; ++c) {
      float* const row = router.append();
      for (std::int64_t i = 0; i < elements; ++i) { row[i] = static_cast<float>(i % 7 + c); }
      mhar::route_outputs<float> asked;
      asked.y = {outputs.data() + c * elements, 8};
      asked.mix = {mixes + c * elements, 8};
      mhar::check(router.route({}, c, {}, asked));
    }
    mhar::check(router.begin_recompute({}, 1, 2));
    mhar::route_outputs<float> again;
    again.y = {outputs.data(), 8};
    mhar::check(router.recompute({}, 1, {}, again));
    mhar::check(router.begin_backward({}));
    for (int n = num_calls - 1; n >= 0; --n) {
      mhar::call_upstream upstream;
      upstream.output_gradient = {outputs.data() + n * elements, 8};
      upstream.mix = {mixes + n * elements, 8};
      mhar::check(router.backward_call({}, n, upstream));
      mhar::check(router.row_gradient({}, n, {}));
    }
    mhar::check(router.finish_backward({}, gradients.data()));
    CHECK(allocations.load() == before);
  }
}

TEST_CASE("cpu: a call, its gradients and a merge allocate nothing, on threads of a pool neither")
{
  constexpr std::int64_t positions = 40;
  constexpr std::int64_t width = 12;
  constexpr std::int64_t elements = positions * width;
  std::vector<float> numbers(10 * elements, 0.5f);
  std::vector<float> written(5 * elements);
  float* const out = written.data();
  mhar::route_problem<float> forward;
  forward.extent = {positions, width, 3};
  forward.num_rows = 4;
  forward.rows = mhar::source_major<float>(numbers.data(), positions, width);
  forward.site.query = numbers.data();
  forward.site.norm_weight = numbers.data();
  forward.stage.norm = mhar::output_norm::rms;
  forward.outputs.y = {out, width};
  forward.outputs.weights = out + elements;
  mhar::route_gradient_problem<float> backward;
  backward.extent = forward.extent;
  backward.num_rows = forward.num_rows;
  backward.rows = forward.rows;
  backward.site = forward.site;
  backward.stage = forward.stage;
  backward.output_gradient = {static_cast<const float*>(numbers.data()), width};
  backward.row_gradients = {out, mhar::element::float32, elements, width};
  backward.gradients.query = out + 4 * elements;
  mhar::merge_problem<float> merge;
  merge.extent = forward.extent;
  merge.num_parts = 3;
  merge.parts = forward.rows;
  merge.part_lse = numbers.data();
  merge.part_lse_stride = positions * 3;
  merge.mix = {out, width};
  mhar::cpu::thread_pool pool{2};
  for (const mhar::cpu::executor run : {mhar::cpu::executor{}, pool.get()}) {
    const mhar::cpu::aligned_memory memory{std::size_t{1} << 20};
    const std::size_t before = allocations;
    mhar::check(mhar::cpu::route(forward, memory.context(run)));
    mhar::check(mhar::cpu::route_gradient(backward, memory.context(run)));
    mhar::check(mhar::cpu::merge(merge, memory.context(run)));
    CHECK(allocations.load() == before);
  }
}
