// SPDX-License-Identifier: Apache-2.0
//! The sweeps on the CPU backend.
#include "cpu_access.hpp"
#include "ending_bodies.hpp"

#include <thread>

namespace {
template <class T>
using on = mhar_test::sweep_on<mhar::cpu::backend, T>;
}

MHAR_TEST_SWEEPS(on<double>, on<float>, on<mhar::bfloat16>, on<mhar::float16>)

TEST_CASE_TEMPLATE("router: what is not a number stays in its place", T, double, float,
                   mhar::bfloat16, mhar::float16)
{
  mhar_test::what_is_not_a_number_stays_in_its_place<mhar::cpu::backend, T>();
}

TEST_CASE("router: every ending") { mhar_test::every_ending<mhar::cpu::backend>({5, 24, 3}, 9); }

TEST_CASE("router: the bits do not depend on the number of threads")
{
  using run_type = mhar_test::sweep_run<mhar::cpu::backend, float>;
  mhar_test::random_inputs random{360};
  mhar_test::sweep_options options = mhar_test::random_options(random);
  options.extent.num_positions = 37;
  auto choices = mhar_test::random_choices<float>(options.schedule, random);
  choices.call_state = choices.row_state = mhar::element::float32;
  const mhar_test::sweep_case<float> data{options, 361};
  run_type alone{data, choices};
  run_type together{data, choices};
  mhar::cpu::thread_pool pool{3};
  together.context().run = pool.get();
  alone.forward();
  together.forward();
  CHECK(alone.backward() == together.backward());
}

TEST_CASE("router: two threads with a router each get the bits of one")
{
  using run_type = mhar_test::sweep_run<mhar::cpu::backend, float>;
  mhar_test::random_inputs random{272};
  mhar_test::sweep_options options = mhar_test::random_options(random);
  options.extent.num_positions = 37;
  const mhar_test::run_choices choices = [&] {
    mhar_test::run_choices drawn = mhar_test::random_choices<float>(options.schedule, random);
    drawn.call_state = drawn.row_state = mhar::element::float32;
    return drawn;
  }();
  const mhar_test::sweep_case<float> data{options, 273};
  run_type alone{data, choices};
  alone.forward();
  const mhar_test::sweep_results expected = alone.backward();
  mhar::cpu::thread_pool pool{2};
  int different[2] = {0, 0};
  const auto loop = [&](int which) {
    run_type run{data, choices};
    run.context().run = pool.get();
    for (int round = 0; round < 10; ++round) {
      run.forward();
      if (run.backward() != expected) { ++different[which]; }
    }
  };
  std::thread other{loop, 1};
  loop(0);
  other.join();
  CHECK(different[0] + different[1] == 0);
}
