// SPDX-License-Identifier: Apache-2.0
//! The merge of partial results on the GPU.
#include "device/stream.cuh"
#include "fuzz/merge_fuzz.hpp"
#include "support/device_memory.cuh"
#include "support/merge_cases.hpp"

#include <mhar/device/merge.cuh>

using namespace mhar_test;

namespace {

const auto on_device = [](const auto& problem) {
  run_on_device(problem, [](const auto& merge, const mhar::device::context& context) {
    return mhar::device::merge(merge, context);
  });
};

template <class T>
void check_random_merges(int count, std::int64_t size, std::uint64_t seed)
{
  for (int i = 0; i < count; ++i, ++seed) {
    CAPTURE(seed);
    entropy choices{seed};
    merge_case<T> data{choices, size};
    if (i % 2 == 1) { data.put_special_values(choices); }
    device_memory memory;
    CHECK_PASSES(data.check(memory, [&](const auto& problem) {
      on_device(problem);
      memory.download();
    }));
  }
}

}  // namespace

TEST_CASE("device: merging with nothing changes no bit")
{
  if (skip_without_gpu()) { return; }
  merging_with_nothing_changes_no_bit<float, device_buffer>(on_device);
  merging_with_nothing_changes_no_bit<double, device_buffer>(on_device);
  merging_with_nothing_changes_no_bit<mhar::bfloat16, device_buffer>(on_device);
}

TEST_CASE("device: a part whose lse is NaN makes the merge NaN")
{
  if (skip_without_gpu()) { return; }
  a_part_whose_lse_is_nan_makes_the_merge_nan<device_buffer>(on_device);
}

TEST_CASE("device: random merges, in place or not, give the reference's result")
{
  if (skip_without_gpu()) { return; }
  check_random_merges<float>(60, 200, 301);
  check_random_merges<mhar::bfloat16>(60, 200, 401);
  check_random_merges<mhar::float16>(60, 200, 501);
  check_random_merges<double>(60, 200, 601);
  // More columns than threads of a block.
  check_random_merges<mhar::bfloat16>(6, 100000, 701);
}

TEST_CASE("device: a merge that is not valid is refused, and one without positions does nothing")
{
  if (skip_without_gpu()) { return; }
  const device_stream stream;
  const mhar::device::context context{stream.get()};
  mhar::merge_problem<float> problem;
  problem.extent = {0, 8, 2, 0};
  problem.num_parts = 2;
  CHECK(mhar::device::merge(problem, context).ok());
  CHECK(workspace_bytes(problem, context) == 0);
  problem.extent.num_positions = 1;
  CHECK(!mhar::device::merge(problem, context).ok());
}
