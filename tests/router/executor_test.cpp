// SPDX-License-Identifier: Apache-2.0
//! Executors that do not run what they are given: every verb says so.
#include "cpu_access.hpp"
#include "random_sweep.hpp"

#include "cpu/cpu_context.hpp"
#include "support/call_case.hpp"

#include <mhar/cpu/merge.hpp>
#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>

#include <string>

using namespace mhar_test;

namespace {

//! Runs one of its loops wrong: the one that is reached after `left` others.
struct faulty_executor
{
  enum fault
  {
    nothing,
    all_but_last,
    last_twice
  };
  fault how = nothing;
  int left = 0;

  [[nodiscard]] mhar::cpu::executor get() { return {&faulty_executor::run, this}; }

private:
  static void run(void* state, int count, mhar::cpu::executor::task task, void* argument)
  {
    auto& self = *static_cast<faulty_executor*>(state);
    const bool faulty = self.left-- == 0;
    if (faulty && self.how == nothing) { return; }
    for (int i = 0; i < count - 1; ++i) { task(argument, i); }
    if (!faulty || self.how == last_twice) { task(argument, count - 1); }
    if (faulty && self.how == last_twice) { task(argument, count - 1); }
  }
};
constexpr faulty_executor::fault faults[] = {
    faulty_executor::nothing, faulty_executor::all_but_last, faulty_executor::last_twice};

//! `verb` on an executor that runs its one loop wrong is code::incomplete.
template <class Problem, class Verb>
void check_incomplete(const Problem& problem, Verb verb)
{
  for (const faulty_executor::fault how : faults) {
    CAPTURE(static_cast<int>(how));
    faulty_executor faulty{how};
    cpu_context context{workspace_bytes(problem, mhar::cpu::context{}), faulty.get()};
    const mhar::status outcome = verb(problem, context.get());
    CHECK(outcome.code == mhar::code::incomplete);
    CHECK(std::string{outcome.argument} == "context.run");
  }
}

}  // namespace

TEST_CASE("executor: a call, its gradients, an update and a merge say that tasks have not run")
{
  random_inputs random{371};
  call_options<float> options;
  options.extent = {70, 24, 3, 0};
  call_case<float> data{options, random};
  const auto route = [](const auto& problem, const mhar::cpu::context& context) {
    return mhar::cpu::route(problem, context);
  };
  check_incomplete(data.forward(host_memory{}).problem, route);
  check_incomplete(data.backward(host_memory{}).problem, mhar::cpu::route_gradient<float>);
  tensor delta{mhar::element::float32, matrix_of(70, 24)};
  tensor sum{mhar::element::float32, matrix_of(70, 24)};
  tensor copy;
  check_incomplete(data.update(1, delta, &sum, copy, host_memory{}).problem, route);

  const std::vector<float> parts(2 * 70 * 24, 1);
  const std::vector<float> part_lse(2 * 70, 0);
  std::vector<float> mix(70 * 24);
  std::vector<float> lse(70);
  mhar::merge_problem<float> merge;
  merge.extent = {70, 24, 1, 0};
  merge.num_parts = 2;
  merge.parts = mhar::source_major(parts.data(), 70, 24);
  merge.part_lse = part_lse.data();
  merge.part_lse_stride = 70;
  merge.mix = {mix.data(), 24};
  merge.lse = lse.data();
  check_incomplete(merge, [](const auto& problem, const mhar::cpu::context& context) {
    return mhar::cpu::merge(problem, context);
  });
}

TEST_CASE("executor: whichever loop of a router's pass is run wrong, the step says so")
{
  sweep_options options;
  // Wide enough that folding the sites and adding up their gradients are several tasks each.
  options.extent = {40, 12288, 2};
  options.schedule = mhar::full_schedule(4);
  options.output_norm = true;
  random_inputs random{372};
  run_choices choices = random_choices<float>(options.schedule, random);
  choices.call_state = choices.row_state = mhar::element::float32;
  const sweep_case<float> data{options, 373};
  for (const faulty_executor::fault how : faults) {
    int loops = 0;
    for (bool ended = false; !ended; ++loops) {
      CAPTURE(loops);
      sweep_run<mhar::cpu::backend, float> run{data, choices};
      faulty_executor faulty{how, loops};
      run.context().run = faulty.get();
      try {
        run.forward();
        run.backward();
        ended = true;
        CHECK(faulty.left >= 0);
      } catch (const mhar::invalid_argument& failure) {
        CHECK(failure.failure().code == mhar::code::incomplete);
        CHECK(std::string{failure.failure().argument} == "context.run");
        CHECK(faulty.left == -1);
      }
    }
    // fold, a pass and output_gradient per call, a pass per row, reduce, and the pass that succeeds.
    CHECK(loops == 1 + 3 * options.schedule.num_calls() + 1 + 1);
  }
}
