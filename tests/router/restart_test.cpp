// SPDX-License-Identifier: Apache-2.0
//! What an abandoned backward leaves behind is nothing; and steps that are due are asked for, in whatever schedule.
#include "sweep_bodies.hpp"

using namespace mhar_test;

namespace {

using run_type = sweep_run<naive_backend, double>;
template <class T>
using naive = sweep_on<naive_backend, T>;
template <class T>
using cpu = sweep_on<mhar::cpu::backend, T>;

run_choices streaming(const mhar::depth_schedule& schedule)
{
  run_choices choices;
  choices.plan = mhar::streaming_plan(schedule);
  return choices;
}

bool is_wrong_order(const mhar::status& outcome) { return outcome.code == mhar::code::wrong_order; }

}  // namespace

TEST_CASE("router: a backward that was left half way leaves nothing to the next")
{
  for (const mhar::depth_schedule& schedule :
       {mhar::full_schedule(6), mhar::block_schedule(6, 2)}) {
    sweep_options options;
    options.extent = {3, 8, 2};
    options.schedule = schedule;
    const sweep_case<double> data{options, 540};
    run_type run{data, streaming(schedule)};
    auto& router = run.router();
    run.forward();
    run.begin_backward();
    // In full mode D of this call is left to the next pass, in block mode its private row's gradient is due.
    const mhar::matrix slot = router.gradient_slot(5);
    std::copy(data.dy[5].begin(), data.dy[5].end(), static_cast<double*>(slot.data));
    mhar::call_upstream upstream = run.upstream(5);
    upstream.output_gradient = slot;
    REQUIRE(router.backward_call(run.context(), 5, upstream).ok());
    run.forward();
    check_close<double>(run.backward(), data.expected());
  }
}

TEST_CASE("router: a row of sharded heads that an abandoned backward gathered is gathered again")
{
  sweep_options options;
  options.extent = {3, 16, 4};
  options.schedule = mhar::full_schedule(3);
  const sweep_case<double> data = sweep_case<double>{options, 541}.heads(0, 2);
  run_type run{data, streaming(options.schedule)};
  auto& router = run.router();
  for (const bool first : {true, false}) {
    run.begin_forward();
    for (int c = 0; c < 3; ++c) {
      run.append_row();
      std::fill(router.inverse_rms(c), router.inverse_rms(c) + 3, 1.0);
      run.route(c);
    }
    run.begin_backward();
    run.backward_call(2);
    CHECK(is_wrong_order(router.row_gradient(run.context(), 2, {})));
    CHECK(router.gather_row(run.context(), 2).ok());
    CHECK(is_wrong_order(router.gather_row(run.context(), 2)));
    if (!first) { CHECK(router.row_gradient(run.context(), 2, {}).ok()); }
  }
}

TEST_CASE(
    "router: a private row's gradient is due before a row that nobody else has read, and the end")
{
  using mhar::private_row;
  sweep_options options;
  options.extent = {3, 8, 2};
  options.schedule = {{1, 1, 2}, {private_row::present, private_row::absent, private_row::present}};
  const sweep_case<double> data{options, 542};
  run_type run{data, streaming(options.schedule)};
  auto& router = run.router();
  run.forward();
  run.begin_backward();
  for (int c = 2; c >= 0; --c) {
    REQUIRE(router.backward_call(run.context(), c, run.upstream(c)).ok());
    if (c == 1) { continue; }
    CHECK(is_wrong_order(router.row_gradient(run.context(), c == 2 ? 1 : 0, {})));
    CHECK(router.private_row_gradient(run.context(), c, run.inputs(c), {}).ok());
    CHECK(router.row_gradient(run.context(), c == 2 ? 1 : 0, {}).ok());
  }
  CHECK(router.finish_backward(run.context(), nullptr).ok());

  // Without a shared row the private row's gradient is all that is missing at the end.
  options.schedule = {{0, 0}, {private_row::present, private_row::present}};
  const sweep_case<double> apart{options, 543};
  run_type short_run{apart, streaming(options.schedule)};
  auto& short_router = short_run.router();
  short_run.forward();
  short_run.begin_backward();
  short_run.backward_call(1);
  REQUIRE(short_router.backward_call(short_run.context(), 0, short_run.upstream(0)).ok());
  CHECK(is_wrong_order(short_router.finish_backward(short_run.context(), nullptr)));
  CHECK(short_router.private_row_gradient(short_run.context(), 0, short_run.inputs(0), {}).ok());
  CHECK(short_router.finish_backward(short_run.context(), nullptr).ok());
}

TEST_CASE_TEMPLATE("router: mixes of one pass may lie at different strides", On, naive<double>,
                   cpu<float>)
{
  using T = typename On::element;
  sweep_options options;
  options.extent = {3, 8, 2};
  options.schedule = mhar::repeated(mhar::full_schedule(3), 2);
  options.queries_per_site = 2;
  const sweep_case<T> data{options, 544};
  run_choices choices = streaming(options.schedule);
  choices.call_state = choices.row_state = mhar::element_of<mhar::accumulate_t<T>>::value;
  sweep_run<typename On::backend, T> run{data, choices};
  auto& router = run.router();
  run.forward();
  run.begin_backward();
  std::vector<T> wide(3 * 11);
  for (int c = 5; c >= 0; --c) {
    const auto call = static_cast<std::size_t>(c);
    const mhar::matrix slot = router.gradient_slot(c);
    std::copy(data.dy[call].begin(), data.dy[call].end(), static_cast<T*>(slot.data));
    mhar::call_upstream upstream = run.upstream(c);
    upstream.output_gradient = slot;
    if (c % 2 == 0) {  // the call behind it waits for its D, with a mix of the usual stride
      const T* const mix = static_cast<const T*>(upstream.mix.data);
      for (std::size_t p = 0; p < 3; ++p) {
        std::copy(mix + p * 8, mix + p * 8 + 8, wide.begin() + static_cast<std::ptrdiff_t>(p) * 11);
      }
      upstream.mix = {wide.data(), 11};
    }
    REQUIRE(router.backward_call(run.context(), c, upstream).ok());
    if (c % 2 == 0) { run.row_gradient(c / 2); }
  }
  run.finish_backward();
  check_close<T>(run.results(), data.expected());
}

TEST_CASE("router: a gradient in its slot, but at another stride, is not taken for the slot's")
{
  sweep_options options;
  options.extent = {3, 8, 2};
  options.schedule = mhar::full_schedule(2);
  const sweep_case<float> data{options, 545};
  run_choices choices = streaming(options.schedule);
  choices.call_state = choices.row_state = mhar::element::float32;
  sweep_run<mhar::cpu::backend, float> run{data, choices};
  run.forward();
  run.begin_backward();
  mhar::call_upstream upstream = run.upstream(1);
  upstream.output_gradient = run.router().gradient_slot(1);
  upstream.output_gradient.position_stride = 0;  // one gradient for all positions
  const mhar::status outcome = run.router().backward_call(run.context(), 1, upstream);
  CHECK(outcome.code == mhar::code::aliasing);
  CHECK(std::string{outcome.argument} == "call_gradient");
}
