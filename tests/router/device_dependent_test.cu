// SPDX-License-Identifier: Apache-2.0
//! Passes that are launched before the kernels in front have ended, while these write the rows.
#include "device_access.cuh"
#include "random_plan.hpp"

#include "support/random.hpp"

#include <mhar/router/depth_router.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

namespace {

using mhar::bfloat16;
using mhar_test::check_cuda;
using device = mhar::device::backend;
using access = mhar_test::backend_access<device>;

//! A sublayer: its row is what it was given and noise. It takes longer than a pass, so that who does
//! not wait for it finds what was there before; the next kernel may start at once.
__global__ void sublayer(bfloat16* row, const bfloat16* given, std::int64_t count, unsigned seed)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
  const long long start = clock64();
  while (clock64() - start < 20000) {}
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const unsigned mixed = (static_cast<unsigned>(i) ^ seed) * 2654435761u;
    const float noise = static_cast<float>(mixed >> 8) * 0x1p-23f - 1.0f;
    row[i] = mhar::round_to<bfloat16>(
        given == nullptr ? noise : fmaf(0.5f, mhar::to_float(given[i]), noise));
  }
}

//! A model in full mode whose sublayers, and what gives their gradients, are kernels of the caller's
//! own.
class model
{
public:
  model(const mhar::shape& extent, const mhar::depth_plan& plan, mhar::element states)
      : extent_{extent},
        queries_{mhar_test::random_inputs{911}.vector<float>(plan.num_calls() * extent.width, 0.3)},
        outputs_{plan.num_calls() * elements()},
        row_gradients_{plan.num_calls() * elements()},
        query_gradients_{plan.num_calls() * extent.width},
        router_{configure(plan, states)},
        block_{static_cast<std::int64_t>(router_.memory().total)}
  {
    mhar::check(router_.bind(block_.data(), router_.memory().total));
  }

  //! All y.
  [[nodiscard]] std::vector<bfloat16> forward(mhar::device::dependent_launch launch, unsigned seed)
  {
    mhar::device::context where = access::context();
    where.dependency = launch;
    mhar::check(router_.begin_forward(where));
    for (int c = 0; c < router_.config().plan.num_calls(); ++c) {
      produce(launch, router_.append(), c == 0 ? nullptr : output(c - 1),
              seed * 1000 + static_cast<unsigned>(c));
      mhar::route_outputs<bfloat16> asked;
      asked.y = {output(c), extent_.width};
      mhar::check(router_.route(where, c, {}, asked));
    }
    return outputs_.host();
  }

  //! After a forward. All gradients of rows and queries; do of all calls are made in front of the first
  //! pass, or each between two passes.
  struct gradients
  {
    std::vector<bfloat16> rows;
    std::vector<float> queries;
  };
  [[nodiscard]] gradients backward(mhar::device::dependent_launch launch, bool ahead, unsigned seed)
  {
    mhar::device::context where = access::context();
    where.dependency = launch;
    const int num_calls = router_.config().plan.num_calls();
    const auto produce_gradient = [&](int c, const bfloat16* given) {
      produce(launch, router_.gradient_place(c), given,
              seed * 1000 + 500 + static_cast<unsigned>(c));
    };
    mhar::check(router_.begin_backward(where));
    for (int c = 0; ahead && c < num_calls; ++c) { produce_gradient(c, nullptr); }
    for (int c = num_calls - 1; c >= 0; --c) {
      const mhar::matrix slot = router_.gradient_slot(c);
      if (!ahead) { produce_gradient(c, c + 1 == num_calls ? nullptr : row_gradient(c + 1)); }
      mhar::call_upstream upstream;
      upstream.output_gradient = slot;
      upstream.mix = {static_cast<const bfloat16*>(output(c)), extent_.width};
      mhar::check(router_.backward_call(where, c, upstream));
      mhar::check(router_.row_gradient(where, c, mhar::matrix{row_gradient(c), extent_.width}));
    }
    std::vector<mhar::site_gradients> wanted(static_cast<std::size_t>(num_calls));
    for (int c = 0; c < num_calls; ++c) {
      wanted[static_cast<std::size_t>(c)].query =
          mhar::array{query_gradients_.data() + c * extent_.width};
    }
    mhar::check(router_.finish_backward(where, wanted.data()));
    return {row_gradients_.host(), query_gradients_.host()};
  }

private:
  [[nodiscard]] std::int64_t elements() const { return extent_.num_positions * extent_.width; }
  [[nodiscard]] bfloat16* output(int call) const { return outputs_.data() + call * elements(); }

  [[nodiscard]] bfloat16* row_gradient(int row) const
  {
    return row_gradients_.data() + row * elements();
  }

  void produce(mhar::device::dependent_launch launch, bfloat16* row, const bfloat16* given,
               unsigned seed) const
  {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 32;
    config.blockDim = 256;
    config.stream = access::stream();
    config.attrs = &attribute;
    config.numAttrs = launch == mhar::device::dependent_launch::programmatic ? 1 : 0;
    check_cuda(cudaLaunchKernelEx(&config, sublayer, row, given, elements(), seed));
  }

  [[nodiscard]] mhar::router_config configure(const mhar::depth_plan& plan, mhar::element states)
  {
    mhar::router_config config;
    config.extent = extent_;
    config.plan = plan;
    config.sites.resize(static_cast<std::size_t>(plan.num_calls()));
    for (int c = 0; c < plan.num_calls(); ++c) {
      config.sites[static_cast<std::size_t>(c)].parameters.query =
          static_cast<const float*>(queries_.data() + c * extent_.width);
    }
    config.call_state = config.row_state = states;
    return config;
  }

  mhar::shape extent_;
  mhar_test::backend_array<device, float> queries_;
  mhar_test::backend_array<device, bfloat16> outputs_;
  mhar_test::backend_array<device, bfloat16> row_gradients_;
  mhar_test::backend_array<device, float> query_gradients_;
  mhar::depth_router<device, bfloat16> router_;
  mhar_test::backend_array<device, unsigned char> block_;
};

template <class T>
[[nodiscard]] bool are_equal(const std::vector<T>& one, const std::vector<T>& other)
{
  return one.size() == other.size() &&
         std::memcmp(one.data(), other.data(), one.size() * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE("device sweeps: passes started early have the bits of passes started in turn")
{
  if (mhar_test::skip_without_gpu()) { return; }
  using mhar::device::dependent_launch;
  mhar_test::random_inputs random{912};
  const mhar::element types[] = {mhar::element::bfloat16, mhar::element::float32};
  const mhar::shape extents[] = {{1024, 1280, 8}, {300, 512, 4}, {2100, 256, 4}};
  for (const mhar::shape& extent : extents) {
    CAPTURE(extent.width);
    const mhar::depth_schedule schedule = mhar::full_schedule(30);
    const auto type = mhar::element::bfloat16;
    const mhar::depth_plan plans[] = {
        mhar::cheapest_plan(schedule, mhar::gpu_costs_of(extent, type, type, type)),
        mhar_test::random_plan(schedule, random), mhar_test::random_plan(schedule, random)};
    for (const mhar::depth_plan& plan : plans) {
      for (const mhar::element states : types) {
        model chain{extent, plan, states};
        for (const unsigned seed : {1u, 2u, 3u}) {
          const bool ahead = seed == 2;
          // Rows, gradients and states of the sweeps before are still there: they are another
          // seed's.
          const auto expected = chain.forward(dependent_launch::off, seed);
          const auto expected_back = chain.backward(dependent_launch::off, ahead, seed);
          static_cast<void>(chain.forward(dependent_launch::off, seed + 10));
          static_cast<void>(chain.backward(dependent_launch::off, ahead, seed + 10));
          const auto early = chain.forward(dependent_launch::programmatic, seed);
          const auto early_back = chain.backward(dependent_launch::programmatic, ahead, seed);
          CHECK(are_equal(early, expected));
          CHECK(are_equal(early_back.rows, expected_back.rows));
          CHECK(are_equal(early_back.queries, expected_back.queries));
        }
      }
    }
  }
}
