// SPDX-License-Identifier: Apache-2.0
//! What a router asks of its backend, and how little it keeps: verbs recorded instead of run, and
//! bytes of the block.
#include "sweep_bodies.hpp"

namespace mhar_test {

//! Writes down what it is asked for.
struct recording_backend
{
  struct record
  {
    std::vector<mhar::advance_problem<double>> advances;
    std::vector<mhar::gather_problem<double>> gathers;
    int folds = 0;
    int output_gradients = 0;
    int zeros = 0;
    int reduces = 0;
    mhar::code answer = mhar::code::success;
  };
  struct context
  {
    void* workspace = nullptr;
    std::size_t workspace_bytes = 0;
    record* log = nullptr;
  };
  static mhar::status answer(const context& where) { return {where.log->answer, "", "", 0}; }

  static mhar::status fold(const mhar::fold_problem<double>&, const context& where) noexcept
  {
    ++where.log->folds;
    return answer(where);
  }
  static mhar::status advance(const mhar::advance_problem<double>& problem,
                              const context& where) noexcept
  {
    where.log->advances.push_back(problem);
    return answer(where);
  }
  static mhar::status output_gradient(const mhar::output_gradient_problem<double>&,
                                      const context& where) noexcept
  {
    ++where.log->output_gradients;
    return answer(where);
  }
  static mhar::status gather(const mhar::gather_problem<double>& problem,
                             const context& where) noexcept
  {
    where.log->gathers.push_back(problem);
    return answer(where);
  }
  static mhar::status reduce(const mhar::reduce_problem<double>&, const context& where) noexcept
  {
    ++where.log->reduces;
    return answer(where);
  }
  static mhar::status zero(void*, std::size_t, const context& where) noexcept
  {
    ++where.log->zeros;
    return answer(where);
  }
  static int num_chunks(const mhar::shape&) noexcept { return 1; }
  template <class>
  static std::size_t packed_bytes(const mhar::shape&, int) noexcept
  {
    return 0;
  }
  template <class>
  static std::size_t workspace_bytes(const mhar::sweep_limits&) noexcept
  {
    return 100;
  }
};

template <>
struct backend_access<recording_backend> : host_access
{
  static recording_backend::context context() { return {}; }
};

}  // namespace mhar_test

using namespace mhar_test;
using run_type = sweep_run<recording_backend, double>;

namespace {

sweep_options nine_calls()
{
  sweep_options options;
  options.extent = {2, 6, 2};
  options.schedule = mhar::full_schedule(9);
  return options;
}

//! Groups of three are recomputed together; calls 1 and 4 open passes for calls 5 to 7.
run_choices recomputed_by_three(const mhar::depth_schedule& nine)
{
  run_choices choices;
  choices.plan = mhar::custom_plan(nine, {1, 8, 2, 1, 5, 4, 3, 2, 1}, std::vector<int>(9, 1));
  choices.recompute_calls = 3;
  return choices;
}

}  // namespace

TEST_CASE("router: a plain pass is one launch per call and one per row")
{
  sweep_options options;
  options.extent = {2, 6, 2};
  options.schedule = mhar::full_schedule(25);
  const sweep_case<double> data{options, 600};
  run_choices choices;
  choices.plan = mhar::cheapest_plan(
      options.schedule, mhar::costs_of(options.extent, mhar::element::bfloat16,
                                       mhar::element::bfloat16, mhar::element::bfloat16));
  recording_backend::record log;
  run_type run{data, choices};
  run.context().log = &log;
  run.forward();
  run.backward();
  CHECK(log.folds == 1);
  CHECK(log.advances.size() == 25);
  CHECK(log.output_gradients == 0);  // D comes from the passes over calls, dy lies where do is kept
  CHECK(log.gathers.size() == 25);
  CHECK(log.zeros == 1);
  CHECK(log.reduces == 1);
  int rows_read = 0;
  for (const auto& pass : log.advances) {
    CHECK(pass.num_new_rows == 1);
    rows_read += pass.num_rows;
  }
  for (const auto& pass : log.gathers) { CHECK(pass.num_new_calls == 1); }
  CHECK(rows_read < 25 * 26 / 2);
}

TEST_CASE("router: a backward pass is told what earlier ones have read and left")
{
  for (const int calls_per_row : {1, 4}) {
    CAPTURE(calls_per_row);
    sweep_options options;
    options.extent = {2, 6, 2};
    options.schedule =
        calls_per_row == 1 ? mhar::full_schedule(25) : mhar::delta_schedule(25, calls_per_row);
    options.null_source = calls_per_row > 1;
    const sweep_case<double> data{options, 602};
    run_choices choices;
    choices.plan = mhar::cheapest_plan(
        options.schedule, mhar::costs_of(options.extent, mhar::element::bfloat16,
                                         mhar::element::bfloat16, mhar::element::bfloat16));
    recording_backend::record log;
    run_type run{data, choices};
    run.context().log = &log;
    run.forward();
    run.backward();
    int num_old = 0;
    for (std::size_t i = 0; i < log.gathers.size(); ++i) {
      const auto& pass = log.gathers[i];
      if (i == 0) {
        CHECK(pass.num_unread_calls == -1);
        continue;
      }
      const auto& before = log.gathers[i - 1];
      CHECK(pass.num_unread_calls == before.first_call - pass.first_call);
      const bool in_front = before.top_row - before.num_rows < pass.top_row;
      CHECK(pass.has_old_states == !in_front);
      num_old += pass.has_old_states && pass.start == mhar::pass_start::kept ? 1 : 0;
    }
    CHECK((calls_per_row > 1 || num_old > 0));
  }
}

TEST_CASE("router: a kept mix that is final is neither copied nor computed again")
{
  sweep_options options;
  options.extent = {2, 6, 2};
  options.schedule = mhar::delta_schedule(12, 4);
  options.null_source = options.partial = options.gate = true;
  const sweep_case<double> data{options, 601};
  run_choices choices;
  choices.plan = mhar::custom_plan(options.schedule, {4, 1, 1, 1, 4, 1, 1, 1, 4, 1, 1, 1}, {2, 1});
  choices.mixes = mhar::mix_keeper::router;
  choices.recompute_calls = 1;
  recording_backend::record log;
  run_type run{data, choices};
  run.context().log = &log;
  run.forward();
  for (int c = 0; c < 12; ++c) {
    const auto& pass = log.advances[static_cast<std::size_t>(c)];
    CHECK(pass.states.first_slot == c);
    CHECK(static_cast<bool>(pass.outputs.mix) == (c % 4 == 0));
    if (c % 4 == 0) { CHECK(pass.outputs.mix.data == run.router().mix(c).data); }
  }
  log.advances.clear();
  static_cast<void>(run.recompute(9));  // the call's state is still there: no row is read
  REQUIRE(log.advances.size() == 1);
  CHECK(log.advances[0].num_rows == 0);
  CHECK(log.advances[0].states.mix == run.router().mix(0).data);
}

TEST_CASE("router: a group of calls is recomputed with the forward's passes")
{
  const sweep_case<double> data{nine_calls(), 605};
  recording_backend::record log;
  run_type run{data, recomputed_by_three(data.options.schedule)};
  run.context().log = &log;
  run.forward();
  log.advances.clear();
  mhar::check(run.router().begin_recompute(run.context(), 5, 3));
  for (int c = 5; c < 8; ++c) { static_cast<void>(run.recompute(c)); }
  // The passes that calls 1 and 4 opened for calls 5, 6 and 7, and the three that these opened.
  const int first_rows[] = {0, 2, 5, 6, 7};
  const int num_rows[] = {2, 3, 1, 1, 1};
  const int num_calls[] = {3, 3, 3, 2, 1};
  REQUIRE(log.advances.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(log.advances[i].first_row == first_rows[i]);
    CHECK(log.advances[i].num_rows == num_rows[i]);
    CHECK(log.advances[i].num_calls == num_calls[i]);
    CHECK(log.advances[i].num_new_rows == 0);
  }
  log.advances.clear();
  static_cast<void>(run.recompute(7));  // the group is over: alone, by its five passes
  CHECK(log.advances.size() == 5);
}

TEST_CASE("router: a group to recompute is over when another one fails or a forward begins")
{
  const sweep_case<double> data{nine_calls(), 606};
  recording_backend::record log;
  run_type run{data, recomputed_by_three(data.options.schedule)};
  run.context().log = &log;
  for (const bool forward : {true, false}) {
    CAPTURE(forward);
    run.forward();
    mhar::check(run.router().begin_recompute(run.context(), 5, 3));
    if (forward) { run.forward(); }
    else {
      log.answer = mhar::code::cuda;
      CHECK(run.router().begin_recompute(run.context(), 6, 2).code == mhar::code::cuda);
      log.answer = mhar::code::success;
    }
    log.advances.clear();
    static_cast<void>(run.recompute(5));
    // Alone, from the start: nothing of what the group had begun is taken.
    CHECK(log.advances.size() == 3);
    for (const auto& pass : log.advances) { CHECK(pass.num_calls == 1); }
  }
}

TEST_CASE("router: a refusal of the backend is passed on and changes nothing")
{
  sweep_options options;
  options.extent = {2, 6, 2};
  options.schedule = mhar::full_schedule(2);
  options.output_norm = true;
  const sweep_case<double> data{options, 602};
  run_choices choices;
  choices.plan = mhar::streaming_plan(options.schedule);
  recording_backend::record log;
  run_type run{data, choices};
  run.context().log = &log;
  auto& router = run.router();
  const auto refuses_once = [&](const auto& step) {
    log.answer = mhar::code::cuda;
    CHECK(step().code == mhar::code::cuda);
    log.answer = mhar::code::success;
    CHECK(step().code == mhar::code::success);
  };
  refuses_once([&] { return router.begin_forward(run.context()); });
  run.append_row();
  run.append_row();
  for (int c = 0; c < 2; ++c) {
    refuses_once([&] { return router.route(run.context(), c, run.inputs(c), run.outputs(c)); });
  }
  refuses_once([&] { return router.begin_backward(run.context()); });
  for (int n = 1; n >= 0; --n) {
    refuses_once([&] { return router.backward_call(run.context(), n, run.upstream(n)); });
    refuses_once([&] { return router.row_gradient(run.context(), n, {}); });
  }
  const std::vector<mhar::site_gradients> none(2);
  refuses_once([&] { return router.finish_backward(run.context(), none.data()); });
}

TEST_CASE("router: what is saved grows with the number of calls, not with its square")
{
  const auto memory_of = [](int num_calls) {
    sweep_options options;
    options.extent = {18, 32, 4};
    options.schedule = mhar::full_schedule(num_calls);
    const sweep_case<double> data{options, 603};
    run_choices choices;
    choices.plan = mhar::cheapest_plan(
        options.schedule, mhar::costs_of(options.extent, mhar::element::float64,
                                         mhar::element::float64, mhar::element::float64));
    return run_type{data, choices}.router().memory();
  };
  const mhar::router_memory shallow = memory_of(13);
  const mhar::router_memory deep = memory_of(25);
  CHECK(static_cast<double>(deep.total) < 2.3 * static_cast<double>(shallow.total));
  CHECK(shallow.saved <= 13 * 18 * (4 + 1) * sizeof(double) + 512);
}

TEST_CASE("router: inference keeps no lse, no gradients and no partial sums")
{
  sweep_options options;
  options.extent = {2, 6, 2};
  options.schedule = mhar::block_schedule(5, 2);
  const sweep_case<double> data{options, 604};
  run_choices choices;
  choices.plan = mhar::streaming_plan(options.schedule);
  sweep_run<naive_backend, double> training{data, choices};
  mhar::router_config config = training.router().config();
  config.use = mhar::router_use::inference;
  config.plan.backward = {};
  mhar::depth_router<naive_backend, double> router{config};
  CHECK(router.memory().backward == 0);
  CHECK(router.memory().saved < training.router().memory().saved);
  const backend_array<naive_backend, unsigned char> block{
      static_cast<std::int64_t>(router.memory().total)};
  mhar::check(router.bind(block.data(), block.size()));
  mhar::check(router.begin_forward({}));
  const sweep_results expected = data.expected();
  for (int c = 0; c < 5; ++c) {
    while (router.num_rows() < data.rows_of(c)) {
      const auto& values = data.rows[static_cast<std::size_t>(router.num_rows())];
      std::copy(values.begin(), values.end(), router.append());
    }
    std::vector<double> y(12);
    std::vector<double> lse(4);
    mhar::route_outputs<double> outputs;
    outputs.y = {y.data(), 6};
    outputs.lse = lse.data();
    mhar::check(router.route({}, c, training.inputs(c), outputs));
    const auto call = static_cast<std::size_t>(c);
    check_close<double>({{"y", {y}}, {"lse", {lse}}},
                        {{"y", {expected.at("y")[call]}}, {"lse", {expected.at("lse")[call]}}});
    CHECK(router.lse(c) == nullptr);
  }
  CHECK(router.begin_backward({}).code == mhar::code::wrong_order);
}

TEST_CASE("router: plans of extents whose bytes do not fit 64 bits are those of small ones")
{
  const mhar::depth_schedule schedule = mhar::full_schedule(25);
  constexpr mhar::element type = mhar::element::float64;
  const auto members_of = [&](std::int64_t positions) {
    const mhar::depth_plan plan =
        mhar::cheapest_plan(schedule, mhar::costs_of({positions, 1 << 18}, type, type, type));
    std::vector<int> members;
    for (int c = 0; c < 25; ++c) { members.push_back(plan.forward.pass(c).num_members); }
    return members;
  };
  CHECK(members_of(std::int64_t{1} << 40) == members_of(std::int64_t{1} << 12));
}
