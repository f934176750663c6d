// SPDX-License-Identifier: Apache-2.0
//! A router lets nothing be written over what it will read again, whichever pass runs: rows, gradients that wait, what it keeps
//! in its block, parameters. Places of rows to come and of dead rows are free.
#include "sweep_bodies.hpp"

using namespace mhar_test;

namespace {

using run_type = sweep_run<naive_backend, double>;

//! Full mode by two levels of passes: most read the newest rows only.
struct two_levels
{
  explicit two_levels(mhar::row_home home) : data{options(), 520}
  {
    choices.plan = mhar::custom_plan(data.options.schedule, {1, 2, 1, 2, 1, 1}, {6, 5, 4, 3, 2, 1});
    choices.rows = home;
  }
  static sweep_options options(bool partial = true)
  {
    sweep_options chosen;
    chosen.extent = {3, 8, 2};
    chosen.schedule = mhar::full_schedule(6);
    chosen.partial = partial;
    return chosen;
  }

  sweep_case<double> data;
  run_choices choices;
};

//! Where row n is, to be written.
mhar::matrix place_of(run_type& run, int n, std::int64_t position_stride)
{
  return {const_cast<double*>(run.router().row(n)), position_stride};
}

void check_refused(const mhar::status& outcome, const char* argument)
{
  CHECK(outcome.code == mhar::code::aliasing);
  CHECK(std::string{outcome.argument} == argument);
}

}  // namespace

TEST_CASE("router: nothing is written over rows that are still to be read")
{
  for (const mhar::row_home home :
       {mhar::row_home::block, mhar::row_home::strided, mhar::row_home::listed}) {
    CAPTURE(static_cast<int>(home));
    const two_levels pass{home};
    const std::int64_t width = pass.data.options.extent.width;
    const std::int64_t stride = home == mhar::row_home::strided ? width * 6 + 5 : width;
    run_type run{pass.data, pass.choices};
    auto& router = run.router();
    run.begin_forward();
    for (int c = 0; c < 6; ++c) {
      run.append_row();
      for (int n = 0; n <= c; ++n) {
        mhar::route_outputs<double> outputs = run.outputs(c);
        outputs.y = place_of(run, n, stride);
        check_refused(router.route(run.context(), c, run.inputs(c), outputs), "outputs.y");
        outputs = run.outputs(c);
        outputs.mix = place_of(run, n, stride);
        check_refused(router.route(run.context(), c, run.inputs(c), outputs), "outputs.mix");
      }
      run.route(c);
    }
    run.begin_backward();
    for (int c = 5; c >= 0; --c) {
      for (int n = 0; n <= c; ++n) {
        mhar::call_upstream upstream = run.upstream(c);
        upstream.partial_gradient = place_of(run, n, stride);
        check_refused(router.backward_call(run.context(), c, upstream), "partial_gradient");
      }
      run.backward_call(c);
      for (int n = 0; n <= c; ++n) {
        check_refused(router.row_gradient(run.context(), c, place_of(run, n, stride)),
                      "row_gradient");
      }
      run.row_gradient(c);
    }
    run.finish_backward();
    check_close<double>(run.results(), pass.data.expected());
  }
}

TEST_CASE("router: places of rows to come and of dead rows may be written")
{
  const two_levels pass{mhar::row_home::block};
  const std::int64_t width = pass.data.options.extent.width;
  run_type run{pass.data, pass.choices};
  auto& router = run.router();
  run.begin_forward();
  for (int c = 0; c < 6; ++c) {
    run.append_row();
    if (c == 3) {
      mhar::route_outputs<double> outputs = run.outputs(c);
      outputs.y = {const_cast<double*>(router.row(4)), width};
      CHECK(router.route(run.context(), c, run.inputs(c), outputs).ok());
    }
    else {
      run.route(c);
    }
  }
  run.begin_backward();
  run.backward_call(5);
  run.row_gradient(5);
  run.backward_call(4);
  CHECK(router.row_gradient(run.context(), 4, place_of(run, 5, width)).ok());
}

TEST_CASE("router: a row under a gradient or a recomputed output is not read again")
{
  enum class writer  // of the place of row 4, once it is dead
  {
    row,
    partial,
    again,
    parameter
  };
  for (const writer by : {writer::row, writer::partial, writer::again, writer::parameter}) {
    CAPTURE(static_cast<int>(by));
    two_levels pass{mhar::row_home::strided};
    pass.choices.recompute_calls = 1;
    const std::int64_t stride = pass.data.options.extent.width * 6 + 5;
    run_type run{pass.data, pass.choices};
    auto& router = run.router();
    const auto again = [&](int call) {
      return router.recompute(run.context(), call, run.inputs(call), run.outputs(call));
    };
    run.forward();
    run.begin_backward();
    for (int c = 5; c >= 0; --c) {
      if (by == writer::partial && c == 3) {
        mhar::call_upstream upstream = run.upstream(c);
        upstream.partial_gradient = place_of(run, 4, stride);
        REQUIRE(router.backward_call(run.context(), c, upstream).ok());
      }
      else {
        run.backward_call(c);
      }
      if (by == writer::row && c == 3) {
        REQUIRE(router.row_gradient(run.context(), c, place_of(run, 4, stride)).ok());
      }
      else {
        run.row_gradient(c);
      }
      CHECK(again(4).ok() == (by == writer::again || by == writer::parameter || c > 3));
    }
    std::vector<mhar::site_gradients> gradients(6);
    if (by == writer::parameter) {
      gradients[2].query = static_cast<double*>(place_of(run, 4, stride).data);
    }
    REQUIRE(router.finish_backward(run.context(), gradients.data()).ok());
    if (by == writer::again) {
      mhar::route_outputs<double> outputs = run.outputs(1);
      outputs.y = place_of(run, 4, stride);
      REQUIRE(router.recompute(run.context(), 1, run.inputs(1), outputs).ok());
    }
    // An array among token-major rows counts as lying over all of them.
    CHECK(again(3).ok() == (by != writer::parameter));
    CHECK(again(4).code == mhar::code::wrong_order);
    CHECK(router.begin_backward(run.context()).code == mhar::code::wrong_order);
    run.forward();
    check_close<double>(run.backward(), pass.data.expected());
  }
}

TEST_CASE("router: a call again is written over no row that a later call has read")
{
  two_levels pass{mhar::row_home::block};
  pass.choices.recompute_calls = 1;
  const std::int64_t width = pass.data.options.extent.width;
  run_type run{pass.data, pass.choices};
  auto& router = run.router();
  const auto again = [&](int row) {
    mhar::route_outputs<double> outputs = run.outputs(1);
    outputs.y = place_of(run, row, width);
    return router.recompute(run.context(), 1, run.inputs(1), outputs);
  };
  run.begin_forward();
  for (int c = 0; c < 4; ++c) { run.route(c); }
  for (int n = 0; n < 4; ++n) { check_refused(again(n), "outputs.y"); }
  for (int c = 4; c < 6; ++c) { run.route(c); }
  run.begin_backward();
  for (int n = 0; n < 6; ++n) { check_refused(again(n), "outputs.y"); }
  run.backward_call(5);
  run.row_gradient(5);
  for (int n = 0; n < 5; ++n) { check_refused(again(n), "outputs.y"); }
  CHECK(again(5).ok());
  for (int c = 4; c >= 0; --c) {
    run.backward_call(c);
    run.row_gradient(c);
  }
  run.finish_backward();
  check_close<double>(run.results(), pass.data.expected());
}

TEST_CASE("router: nothing is written over what it keeps in its block, nor over a parameter")
{
  two_levels pass{mhar::row_home::listed};
  pass.choices.recompute_calls = 1;
  const std::int64_t width = pass.data.options.extent.width;
  run_type run{pass.data, pass.choices};
  auto& router = run.router();
  run.begin_forward();
  const auto forbidden = [&] {
    return std::vector<void*>{const_cast<double*>(router.lse(5)), router.inverse_rms(0),
                              const_cast<void*>(router.config().sites[3].parameters.query.data)};
  };
  for (int c = 0; c < 6; ++c) {
    run.append_row();
    for (void* const place : forbidden()) {
      mhar::route_outputs<double> outputs = run.outputs(c);
      outputs.y = {static_cast<double*>(place), width};
      check_refused(router.route(run.context(), c, run.inputs(c), outputs), "outputs.y");
    }
    run.route(c);
  }
  for (void* const place : forbidden()) {
    mhar::route_outputs<double> outputs = run.outputs(2);
    outputs.combined = {static_cast<double*>(place), width};
    check_refused(router.recompute(run.context(), 2, run.inputs(2), outputs), "outputs.combined");
  }
  run.begin_backward();
  for (int c = 5; c >= 0; --c) {
    for (void* const place : forbidden()) {
      const mhar::matrix output{static_cast<double*>(place), width};
      mhar::call_upstream upstream = run.upstream(c);
      upstream.partial_gradient = output;
      check_refused(router.backward_call(run.context(), c, upstream), "partial_gradient");
    }
    run.backward_call(c);
    for (void* const place : forbidden()) {
      check_refused(router.row_gradient(run.context(), c, {static_cast<double*>(place), width}),
                    "row_gradient");
    }
    run.row_gradient(c);
  }
  for (void* const place : forbidden()) {
    std::vector<mhar::site_gradients> gradients(6);
    gradients[4].query = static_cast<double*>(place);
    check_refused(router.finish_backward(run.context(), gradients.data()), "gradients");
  }
  run.finish_backward();
  check_close<double>(run.results(), pass.data.expected());
}

TEST_CASE("router: nothing is written over gradients that wait in the places of dead rows")
{
  two_levels pass{mhar::row_home::block};
  pass.choices.gradients = mhar::gradient_home::dead_rows;
  const std::int64_t width = pass.data.options.extent.width;
  run_type run{pass.data, pass.choices};
  auto& router = run.router();
  run.forward();
  run.begin_backward();
  const mhar::matrix extra = router.gradient_slot(5);
  for (int c = 5; c >= 0; --c) {
    for (int n = c + 2; n < 6; ++n) {
      mhar::call_upstream upstream = run.upstream(c);
      upstream.partial_gradient = place_of(run, n, width);
      check_refused(router.backward_call(run.context(), c, upstream), "partial_gradient");
    }
    run.backward_call(c);
    check_refused(router.row_gradient(run.context(), c, extra), "row_gradient");
    for (int n = c + 1; n < 6; ++n) {
      check_refused(router.row_gradient(run.context(), c, place_of(run, n, width)), "row_gradient");
    }
    run.row_gradient(c);
  }
  run.finish_backward();
  check_close<double>(run.results(), pass.data.expected());
}

TEST_CASE("router: nothing is written over a mix that the next pass reads")
{
  two_levels pass{mhar::row_home::block};
  pass.data = sweep_case<double>{two_levels::options(false), 521};
  pass.choices.recompute_calls = 1;
  run_type run{pass.data, pass.choices};
  auto& router = run.router();
  run.forward();
  run.begin_backward();
  for (int c = 5; c >= 0; --c) {
    run.backward_call(
        c);  // dy is in its slot and nothing follows the mix: D is left to row_gradient
    const mhar::const_matrix read = run.upstream(c).mix;
    const mhar::matrix mix{const_cast<void*>(read.data), read.type, read.position_stride};
    mhar::route_outputs<double> outputs = run.outputs(0);
    outputs.y = mix;
    check_refused(router.recompute(run.context(), 0, run.inputs(0), outputs), "outputs.y");
    check_refused(router.row_gradient(run.context(), c, mix), "row_gradient");
    run.row_gradient(c);
    if (c > 0) { CHECK(router.recompute(run.context(), 0, run.inputs(0), outputs).ok()); }
  }
  run.finish_backward();
  check_close<double>(run.results(), pass.data.expected());
}

TEST_CASE("router: a mix that lies where the call's gradient is kept is refused")
{
  for (const mhar::gradient_home home :
       {mhar::gradient_home::block, mhar::gradient_home::dead_rows}) {
    CAPTURE(static_cast<int>(home));
    two_levels pass{mhar::row_home::block};
    pass.data = sweep_case<double>{two_levels::options(false), 522};
    pass.choices.gradients = home;
    run_type run{pass.data, pass.choices};
    auto& router = run.router();
    run.forward();
    run.begin_backward();
    for (int c = 5; c >= 0; --c) {
      mhar::call_upstream upstream = run.upstream(c);
      for (const bool in_place : {true, false}) {
        const mhar::matrix slot = router.gradient_slot(c);
        upstream.mix = slot;
        if (in_place) { upstream.output_gradient = slot; }
        check_refused(router.backward_call(run.context(), c, upstream), "mix");
      }
      run.backward_call(c);
      run.row_gradient(c);
    }
    run.finish_backward();
    check_close<double>(run.results(), pass.data.expected());
  }
}

TEST_CASE("router: a private row's gradient is written over nothing that is still to be read")
{
  sweep_options options;
  options.extent = {3, 8, 2};
  options.schedule = mhar::block_schedule(6, 2);
  const sweep_case<double> data{options, 523};
  run_choices choices;
  choices.plan = mhar::streaming_plan(options.schedule);
  run_type run{data, choices};
  auto& router = run.router();
  run.forward();
  run.begin_backward();
  REQUIRE(router.backward_call(run.context(), 5, run.upstream(5)).ok());
  const void* const query = router.config().sites[3].parameters.query.data;
  for (const void* const place :
       {static_cast<const void*>(router.row(1)), static_cast<const void*>(router.lse(5)), query}) {
    const mhar::matrix output{const_cast<void*>(place), mhar::element::float64, 8};
    check_refused(router.private_row_gradient(run.context(), 5, run.inputs(5), output),
                  "row_gradient");
  }
  CHECK(router.private_row_gradient(run.context(), 5, run.inputs(5), {}).ok());
  run.backward_call(4);
  run.row_gradient(2);
  REQUIRE(router.backward_call(run.context(), 3, run.upstream(3)).ok());
  REQUIRE(router.private_row_gradient(run.context(), 3, run.inputs(3), place_of(run, 2, 8)).ok());
  run.backward_call(2);
  run.row_gradient(1);
  run.backward_call(1);
  run.backward_call(0);
  run.row_gradient(0);
  run.finish_backward();
  CHECK(router.begin_backward(run.context()).code == mhar::code::wrong_order);
}

TEST_CASE("router: a block over its rows or its parameters is refused")
{
  const two_levels pass{mhar::row_home::strided};
  run_type run{pass.data, pass.choices};
  mhar::router_config config = run.router().config();
  const std::int64_t elements = 3 * pass.data.options.extent.width;
  const std::size_t total = run.router().memory().total;
  backend_array<naive_backend, unsigned char> memory{static_cast<std::int64_t>(2 * total)};
  auto* const rows = reinterpret_cast<double*>(memory.data() + total - 64);
  {
    mhar::depth_router<naive_backend, double> router{config};
    REQUIRE(router.bind(memory.data(), total).ok());
    REQUIRE(router.bind_rows(rows, elements, pass.data.options.extent.width).ok());
    check_refused(router.begin_forward(run.context()), "base");
    REQUIRE(router.bind_rows(rows + 8, elements, pass.data.options.extent.width).ok());
    CHECK(router.begin_forward(run.context()).ok());
  }
  const backend_array<naive_backend, double> apart{6 * elements};
  config.sites[2].parameters.query = rows;
  mhar::depth_router<naive_backend, double> router{config};
  REQUIRE(router.bind(memory.data(), total).ok());
  REQUIRE(router.bind_rows(apart.data(), elements, pass.data.options.extent.width).ok());
  check_refused(router.begin_forward(run.context()), "block");
}

TEST_CASE("router: what is asked of a call or row that is not there is null")
{
  two_levels pass{mhar::row_home::block};
  pass.choices.mixes = mhar::mix_keeper::router;
  run_type run{pass.data, pass.choices};
  for (const int call : {-1, 6}) {
    CHECK(run.router().lse(call) == nullptr);
    CHECK(!run.router().mix(call));
    CHECK(run.router().row(call) == nullptr);
    CHECK(run.router().inverse_rms(call) == nullptr);
  }
  CHECK(run.router().lse(5) != nullptr);
  CHECK(run.router().row(5) != nullptr);
  CHECK(run.router().inverse_rms(5) != nullptr);
  mhar::depth_router<naive_backend, double> unbound{run.router().config()};
  CHECK(unbound.lse(1) == nullptr);
  CHECK(unbound.row(1) == nullptr);
  CHECK(unbound.inverse_rms(1) == nullptr);
  CHECK(!unbound.mix(1));
}
