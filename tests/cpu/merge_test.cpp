// SPDX-License-Identifier: Apache-2.0
//! The merge of partial results on the CPU. Random ones are the fuzzer's (fuzz/merge_fuzz.hpp).
#include "cpu/cpu_context.hpp"
#include "support/host_buffer.hpp"
#include "support/merge_cases.hpp"

#include <mhar/cpu/merge.hpp>

using namespace mhar_test;

namespace {

const auto on_cpu = [](const auto& problem) {
  run_on_cpu(problem, [](const auto& merge, const mhar::cpu::context& context) {
    return mhar::cpu::merge(merge, context);
  });
};

}  // namespace

TEST_CASE("cpu: merging with nothing changes no bit")
{
  merging_with_nothing_changes_no_bit<float, host_buffer>(on_cpu);
  merging_with_nothing_changes_no_bit<double, host_buffer>(on_cpu);
  merging_with_nothing_changes_no_bit<mhar::bfloat16, host_buffer>(on_cpu);
}

TEST_CASE("cpu: a part whose lse is NaN makes the merge NaN")
{
  a_part_whose_lse_is_nan_makes_the_merge_nan<host_buffer>(on_cpu);
}
