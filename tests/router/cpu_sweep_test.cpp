// SPDX-License-Identifier: Apache-2.0
//! The sweeps on the CPU backend.
#include "cpu_access.hpp"
#include "sweep_bodies.hpp"

namespace {
template <class T>
using on = mhar_test::sweep_on<mhar::cpu::backend, T>;
}

MHAR_TEST_SWEEPS(on<double>, on<float>, on<mhar::bfloat16>, on<mhar::float16>)

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
