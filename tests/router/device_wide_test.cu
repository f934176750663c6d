// SPDX-License-Identifier: Apache-2.0
//! The sweeps over wide heads: null sources, partials, gates, ragged positions, calls and rows in
//! one group and in several, and bits that depend on nothing but a position and its segments.
#include "device_access.cuh"
#include "ending_bodies.hpp"

namespace {

using mhar::bfloat16;
using mhar::float16;
using device = mhar::device::backend;

struct sizes
{
  int num_calls;
  int per_block;  // calls of a block; 0 for full mode
  std::int64_t positions;
  std::int64_t head_width;
  int heads;
  bool delta;  // null source, gate and partial
};

mhar_test::sweep_options options_of(const sizes& each)
{
  mhar_test::sweep_options options;
  options.extent = {each.positions, each.head_width * each.heads, each.heads};
  options.schedule = each.per_block == 0 ? mhar::full_schedule(each.num_calls)
                                         : mhar::delta_schedule(each.num_calls, each.per_block);
  options.null_source = options.gate = options.partial = each.delta;
  return options;
}

constexpr sizes all_sizes[] = {{1, 0, 1, 256, 1, false},  {7, 0, 5, 512, 2, false},
                               {12, 0, 9, 256, 3, true},  {18, 0, 3, 512, 1, false},
                               {12, 4, 37, 512, 8, true}, {26, 8, 11, 256, 8, true},
                               {9, 1, 130, 512, 3, true}, {20, 2, 2, 256, 4, false}};

//! Heads that are several warps' columns, in one block and over several; blocks of one call and of
//! more than a pass takes.
constexpr sizes split_sizes[] = {{5, 0, 1, 7168, 1, false},  {6, 3, 37, 7168, 1, true},
                                 {18, 0, 3, 1024, 1, false}, {10, 9, 131, 1280, 1, true},
                                 {8, 4, 25, 2048, 2, true},  {12, 2, 7, 1024, 4, true},
                                 {7, 0, 9, 4096, 1, false},  {9, 8, 261, 1536, 1, true},
                                 {4, 2, 2, 2560, 2, true},   {6, 2, 5, 768, 8, true}};

template <class T = bfloat16>
void equal_single_calls(const sizes& each, mhar_test::random_inputs& random)
{
  CAPTURE(each.num_calls);
  CAPTURE(each.positions);
  CAPTURE(each.head_width);
  mhar_test::sweep_options options = options_of(each);
  // The first call of delta mode reads no row, so it needs the null source.
  if (each.per_block != 0) { options.null_source = true; }
  mhar_test::run_choices narrow;
  narrow.mixes = mhar::mix_keeper::router;
  mhar_test::both_states_equal_single_calls<device, T>(options, 510, random, narrow);
}

TEST_CASE("device wide sweeps: equal single calls")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_inputs random{79};
  for (const sizes& each : all_sizes) { equal_single_calls(each, random); }
}

TEST_CASE("device wide sweeps: split heads equal single calls")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_inputs random{78};
  for (const sizes& each : split_sizes) { equal_single_calls(each, random); }
}

TEST_CASE("device wide sweeps: float16 rows equal single calls")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_inputs random{77};
  for (const std::size_t x : {0u, 2u, 4u, 5u}) {
    equal_single_calls<float16>(all_sizes[x], random);
  }
  for (const std::size_t x : {1u, 4u, 5u, 9u}) {
    equal_single_calls<float16>(split_sizes[x], random);
  }
}

TEST_CASE("device wide sweeps: every ending")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::every_ending<device>({9, 256, 1}, 12);
  mhar_test::every_ending<device>({40, 3 * 512, 3}, 20);
  mhar_test::every_ending<device>({10, 2 * 768, 2}, 12);
  // More positions than the workspace holds mixes of.
  mhar_test::every_ending<device>({2100, 256, 1}, 4);
}

TEST_CASE("device wide sweeps: every ending over float16 rows")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::every_ending<device, float16>({9, 2 * 256, 2}, 10);
}

TEST_CASE("device wide sweeps: recompute alone gives the bits of the forward")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_inputs random{80};
  const sizes each[] = {{14, 3, 19, 256, 2, true},
                        {14, 3, 19, 256, 2, true},
                        {14, 3, 19, 3584, 1, true},
                        {9, 9, 67, 1024, 2, true}};
  for (int x = 0; x < 4; ++x) {
    CAPTURE(x);
    mhar_test::sweep_options options = options_of(each[x]);
    options.output_norm = x == 1;
    const mhar_test::sweep_case<bfloat16> data{options, 511};
    mhar_test::run_choices choices;
    choices.plan = mhar_test::random_plan(options.schedule, random);
    choices.call_state = choices.row_state = mhar::element::bfloat16;
    choices.recompute_calls = 1;
    mhar_test::sweep_run<device, bfloat16> run{data, choices};
    run.forward();
    const mhar_test::sweep_results first = run.results();
    for (int c = 0; c < options.schedule.num_calls(); ++c) {
      CAPTURE(c);
      for (const auto& output : run.recompute(c)) {
        const bool same =
            output.second.front() == first.at(output.first)[static_cast<std::size_t>(c)];
        CHECK_MESSAGE(same, output.first);
      }
    }
  }
}

}  // namespace
