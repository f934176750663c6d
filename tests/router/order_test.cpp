// SPDX-License-Identifier: Apache-2.0
//! What a router refuses: calls out of order, rows that are gone, configurations that mean nothing.
//! A refusal changes nothing.
#include "sweep_bodies.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

using namespace mhar_test;

namespace {

using run_type = sweep_run<naive_backend, double>;

sweep_case<double> full_case(int num_calls)
{
  sweep_options options;
  options.extent = {2, 6, 2};
  options.schedule = mhar::full_schedule(num_calls);
  return {options, 500};
}

run_choices streaming(const mhar::depth_schedule& schedule)
{
  run_choices choices;
  choices.plan = mhar::streaming_plan(schedule);
  choices.recompute_calls = 2;
  return choices;
}

#define CHECK_WRONG_ORDER(...) CHECK((__VA_ARGS__).code == mhar::code::wrong_order)

}  // namespace

TEST_CASE("router: the forward goes call by call, over rows that are there")
{
  const auto data = full_case(3);
  run_type run{data, streaming(data.options.schedule)};
  auto& router = run.router();
  const auto route = [&](int c) {
    return router.route(run.context(), c, run.inputs(c), run.outputs(c));
  };
  CHECK(router.append() == nullptr);
  CHECK_WRONG_ORDER(route(0));
  CHECK_WRONG_ORDER(router.begin_backward(run.context()));
  run.begin_forward();
  CHECK_WRONG_ORDER(route(0));  // row 0 has not been appended
  run.append_row();
  CHECK_WRONG_ORDER(route(1));
  CHECK_WRONG_ORDER(router.recompute(run.context(), 0, run.inputs(0), run.outputs(0)));
  run.append_row();  // early: a row may be written as soon as the rows before it are
  run.append_row();
  CHECK(router.append() == nullptr);
  CHECK_WRONG_ORDER(router.append(data.rows[0].data()));
  for (int c = 0; c < 3; ++c) {
    CHECK_WRONG_ORDER(router.begin_backward(run.context()));
    run.route(c);
    CHECK_WRONG_ORDER(route(c));
  }
  CHECK_WRONG_ORDER(router.route(run.context(), 3, {}, {}));
  CHECK_WRONG_ORDER(router.recompute(run.context(), 3, {}, {}));
  CHECK_WRONG_ORDER(router.begin_recompute(run.context(), 0, 3));  // built for two at once
  CHECK_WRONG_ORDER(router.begin_recompute(run.context(), 2, 2));
  CHECK_WRONG_ORDER(router.begin_recompute(run.context(), 1, 0));
  run.backward();
  check_close<double>(run.results(), data.expected());
}

TEST_CASE("router: the backward takes a call, then the rows that only it and later calls read")
{
  const auto data = full_case(3);
  run_type run{data, streaming(data.options.schedule)};
  auto& router = run.router();
  const auto take = [&](int c) { return router.backward_call(run.context(), c, run.upstream(c)); };
  const auto finish_row = [&](int n) { return router.row_gradient(run.context(), n, {}); };
  run.forward();
  CHECK_FALSE(router.gradient_slot(2));
  CHECK_WRONG_ORDER(take(2));
  CHECK_WRONG_ORDER(finish_row(2));
  CHECK_WRONG_ORDER(router.finish_backward(run.context(), nullptr));
  run.begin_backward();
  CHECK_WRONG_ORDER(router.begin_backward(run.context()));
  CHECK_WRONG_ORDER(router.route(run.context(), 0, run.inputs(0), run.outputs(0)));
  CHECK_WRONG_ORDER(finish_row(2));  // call 2 reads it
  CHECK_FALSE(router.gradient_slot(1));
  CHECK_WRONG_ORDER(take(1));
  run.backward_call(2);
  CHECK_WRONG_ORDER(take(2));
  CHECK_WRONG_ORDER(take(1));  // row 2 first
  CHECK_FALSE(router.gradient_slot(1));
  CHECK_WRONG_ORDER(finish_row(1));
  run.row_gradient(2);
  CHECK_WRONG_ORDER(finish_row(2));
  for (int n = 1; n >= 0; --n) {
    CHECK_WRONG_ORDER(router.finish_backward(run.context(), nullptr));
    run.backward_call(n);
    CHECK_WRONG_ORDER(router.private_row_gradient(run.context(), n, {}, {}));
    run.row_gradient(n);
  }
  run.finish_backward();
  CHECK_WRONG_ORDER(router.finish_backward(run.context(), nullptr));
  check_close<double>(run.results(), data.expected());
}

TEST_CASE("router: a private row's gradient is due at once")
{
  sweep_options options;
  options.extent = {2, 6, 2};
  options.schedule = mhar::block_schedule(4, 4);
  const sweep_case<double> data{options, 501};
  run_type run{data, streaming(options.schedule)};
  auto& router = run.router();
  run.begin_forward();
  run.append_row();
  CHECK(router.route(run.context(), 0, {data.private_rows[1].data(), 0, {}}, run.outputs(0)).code ==
        mhar::code::bad_value);
  run.route(0);
  CHECK(router.route(run.context(), 1, {}, run.outputs(1)).code == mhar::code::missing_argument);
  for (int c = 1; c < 4; ++c) { run.route(c); }
  run.begin_backward();
  mhar::check(router.backward_call(run.context(), 3, run.upstream(3)));
  CHECK_WRONG_ORDER(router.backward_call(run.context(), 2, run.upstream(2)));
  CHECK_WRONG_ORDER(router.row_gradient(run.context(), 0, {}));
  CHECK_WRONG_ORDER(router.private_row_gradient(run.context(), 2, run.inputs(2), {}));
  CHECK(router.private_row_gradient(run.context(), 3, {}, {}).code == mhar::code::missing_argument);
  mhar::check(router.private_row_gradient(run.context(), 3, run.inputs(3), {}));
  CHECK_WRONG_ORDER(router.private_row_gradient(run.context(), 3, run.inputs(3), {}));
  run.backward_call(2);
}

TEST_CASE("router: rows whose places hold gradients are gone")
{
  const auto data = full_case(4);
  run_choices choices = streaming(data.options.schedule);
  choices.gradients = mhar::gradient_home::dead_rows;
  choices.upstream = upstream_home::buffers;
  run_type run{data, choices};
  auto& router = run.router();
  const auto again = [&](int c) {
    return router.recompute(run.context(), c, run.inputs(c), run.outputs(c));
  };
  run.forward();
  CHECK(router.gradient_place(2) == router.row(3));
  CHECK(router.gradient_place(4) == nullptr);
  run.begin_backward();
  run.backward_call(3);  // into the extra row: nothing is lost
  CHECK(again(3).ok());
  run.row_gradient(3);
  CHECK(again(3).ok());
  CHECK(router.gradient_slot(2).data ==
        router.row(3));  // handed out: it may be written from now on
  CHECK_WRONG_ORDER(again(3));
  CHECK(again(2).ok());
  run.backward_call(2);
  run.row_gradient(2);
  run.backward_call(1);
  CHECK_WRONG_ORDER(again(2));
  run.row_gradient(1);
  run.backward_call(0);
  run.row_gradient(0);
  run.finish_backward();
  CHECK_WRONG_ORDER(router.begin_backward(run.context()));
  CHECK_WRONG_ORDER(again(1));
  CHECK(again(0).ok());
  check_close<double>(run.results(), data.expected());
  run.forward();  // starting over is always possible
  check_close<double>(run.backward(), data.expected());
}

TEST_CASE("router: a refused call of the backward costs no row, and is refused by its own name")
{
  const auto data = full_case(3);
  run_choices choices = streaming(data.options.schedule);
  choices.gradients = mhar::gradient_home::dead_rows;
  run_type run{data, choices};
  auto& router = run.router();
  run.forward();
  run.begin_backward();
  run.backward_call(2);
  run.row_gradient(2);
  mhar::call_upstream wrong = run.upstream(1);
  wrong.output_gradient.position_stride = -1;
  CHECK(router.backward_call(run.context(), 1, wrong).code == mhar::code::bad_stride);
  CHECK(router.recompute(run.context(), 2, run.inputs(2), run.outputs(2)).ok());
  wrong = run.upstream(1);
  wrong.output_gradient = router.gradient_slot(1);
  wrong.mix.position_stride = -1;
  const mhar::status refused = router.backward_call(run.context(), 1, wrong);
  CHECK(refused.code == mhar::code::bad_stride);
  CHECK(std::string{refused.argument} == "mix");
  for (int n = 1; n >= 0; --n) {
    run.backward_call(n);
    run.row_gradient(n);
  }
  run.finish_backward();
  check_close<double>(run.results(), data.expected());
}

TEST_CASE("router: rows given back in place cost two extra rows in full mode, not a second buffer")
{
  const auto data = full_case(9);
  run_choices choices = streaming(data.options.schedule);
  const std::size_t row_bytes = 256;  // 2 x 6 doubles, rounded up
  run_type separate{data, choices};
  choices.gradients = mhar::gradient_home::dead_rows;
  run_type in_place{data, choices};
  const auto& more = separate.router().memory();
  const auto& less = in_place.router().memory();
  CHECK(less.rows <= more.rows + row_bytes);  // the second one is the caller's, which receives ds
  CHECK(less.backward + 8 * 12 * sizeof(double) <= more.backward);
}

TEST_CASE("router: a router without memory, rows or recompute says so")
{
  const auto data = full_case(2);
  run_choices choices = streaming(data.options.schedule);
  choices.recompute_calls = 0;
  run_type run{data, choices};
  run.forward();
  CHECK_WRONG_ORDER(run.router().recompute(run.context(), 0, run.inputs(0), run.outputs(0)));
  CHECK_WRONG_ORDER(run.router().gather_row(run.context(), 1));

  mhar::router_config config = run.router().config();
  config.rows = mhar::row_home::strided;
  mhar::depth_router<naive_backend, double> router{config};
  alignas(256) static unsigned char block[1 << 16];
  REQUIRE(router.memory().total <= sizeof(block));
  CHECK_WRONG_ORDER(router.begin_forward({}));
  CHECK_WRONG_ORDER(router.bind_rows(nullptr, 6, 6));
  CHECK(router.bind(nullptr, 1 << 16).code == mhar::code::missing_argument);
  CHECK(router.bind(block, router.memory().total - 1).code == mhar::code::small_workspace);
  CHECK(router.bind(block + 8, sizeof(block) - 8).code == mhar::code::bad_alignment);
  mhar::check(router.bind(block, sizeof(block)));
  CHECK_WRONG_ORDER(router.begin_forward({}));
  double rows[24] = {};
  CHECK(router.bind_rows(nullptr, 12, 6).code == mhar::code::missing_argument);
  CHECK(router.bind_rows(rows, 12, 5).code == mhar::code::bad_stride);
  CHECK(router.bind_rows(rows, 6, 6).code == mhar::code::bad_stride);  // rows over one another
  CHECK(router.bind_rows(rows, 11, 6).code == mhar::code::bad_stride);
  CHECK(router.bind_rows(rows, std::int64_t{1} << 60, 6).code == mhar::code::bad_stride);
  mhar::check(router.bind_rows(rows, 6, 12));
  mhar::check(router.bind_rows(rows, 12, 6));
  CHECK(router.begin_forward({}).ok());
}

TEST_CASE("router: without positions no array need exist, and a router may move")
{
  const auto data = full_case(2);
  mhar::router_config config = run_type{data, streaming(data.options.schedule)}.router().config();
  config.extent.num_positions = 0;
  config.rows = mhar::row_home::strided;
  double numbers[2][12];
  for (auto& site : config.sites) {
    site.parameters.query = site.parameters.norm_weight = numbers[0];
  }
  std::fill(std::begin(numbers[0]), std::end(numbers[0]), 1.0);
  std::fill(std::begin(numbers[1]), std::end(numbers[1]), NAN);
  alignas(256) static unsigned char block[1 << 14];
  mhar::depth_router<naive_backend, double> built{config};
  REQUIRE(built.memory().total <= sizeof(block));
  mhar::check(built.bind(block, sizeof(block)));
  mhar::depth_router<naive_backend, double> router{std::move(built)};
  mhar::check(router.bind_rows(nullptr, 6, 6));
  mhar::check(router.begin_forward({}));
  for (int c = 0; c < 2; ++c) {
    CHECK(router.append() != nullptr);
    mhar::check(router.route({}, c, {}, {}));
  }
  CHECK(router.append() == nullptr);
  mhar::check(router.begin_backward({}));
  for (int c = 1; c >= 0; --c) {
    mhar::check(router.backward_call({}, c, {}));
    mhar::check(router.row_gradient({}, c, {}));
  }
  mhar::site_gradients gradients[2];
  gradients[0].query = numbers[1];
  gradients[1].norm_weight = numbers[1] + 6;
  mhar::check(router.finish_backward({}, gradients));
  for (const double gradient : numbers[1]) { CHECK(gradient == 0); }
}

TEST_CASE("router: without positions a private row that is a call's only source may be null")
{
  mhar::depth_schedule schedule;
  schedule.num_rows = {0, 1};
  schedule.private_rows = {mhar::private_row::present, mhar::private_row::absent};
  mhar::router_config config =
      run_type{full_case(2), streaming(mhar::full_schedule(2))}.router().config();
  config.extent.num_positions = 0;
  config.plan = mhar::streaming_plan(schedule);
  const double query[6] = {};
  for (auto& site : config.sites) {
    site.parameters = {};
    site.parameters.query = query;
  }
  alignas(256) static unsigned char block[1 << 14];
  mhar::depth_router<naive_backend, double> router{config};
  REQUIRE(router.memory().total <= sizeof(block));
  mhar::check(router.bind(block, sizeof(block)));
  mhar::check(router.begin_forward({}));
  CHECK(router.route({}, 0, {}, {}).ok());
}

TEST_CASE("router: a listed row that no call could read is refused when it is appended")
{
  const auto data = full_case(2);
  run_choices choices = streaming(data.options.schedule);
  choices.rows = mhar::row_home::listed;
  mhar::router_config config = run_type{data, choices}.router().config();
  const std::vector<double> values(64, 1.0);
  for (auto& site : config.sites) {
    site.parameters = {};
    site.parameters.query = values.data();
  }
  mhar::depth_router<naive_backend, double> router{config};
  backend_array<naive_backend, unsigned char> memory{
      static_cast<std::int64_t>(router.memory().total)};
  mhar::check(router.bind(memory.data(), memory.size()));
  mhar::check(router.begin_forward({}));
  const auto* const odd =
      reinterpret_cast<const double*>(reinterpret_cast<const char*>(values.data()) + 4);
  const auto* const inside = reinterpret_cast<const double*>(memory.data() + 64);
  CHECK(router.append(odd).code == mhar::code::bad_alignment);
  CHECK(router.append(inside).code == mhar::code::aliasing);
  CHECK(router.num_rows() == 0);
  CHECK(router.append(values.data()).ok());
}

TEST_CASE("router: outputs that a sweep does not write are refused")
{
  const auto data = full_case(2);
  run_choices choices = streaming(data.options.schedule);
  choices.mixes = mhar::mix_keeper::router;
  run_type run{data, choices};
  run.begin_forward();
  run.append_row();
  double numbers[64];
  const auto refusal = [&](const std::function<void(mhar::route_outputs<double>&)>& ask) {
    mhar::route_outputs<double> outputs = run.outputs(0);
    ask(outputs);
    return run.router().route(run.context(), 0, run.inputs(0), outputs).code;
  };
  CHECK(refusal([&](auto& asked) { asked.weights = numbers; }) == mhar::code::unsupported);
  CHECK(refusal([&](auto& asked) { asked.inverse_rms = numbers; }) == mhar::code::unsupported);
  CHECK(refusal([&](auto& asked) { asked.lse = numbers; }) == mhar::code::bad_value);
  CHECK(refusal([&](auto& asked) { asked.mix = {numbers, 6}; }) == mhar::code::bad_value);
  CHECK(refusal([](auto&) {}) == mhar::code::success);
}

TEST_CASE("router: what the backward of a call needs is asked for by name")
{
  sweep_options options;
  options.extent = {2, 6, 2};
  options.schedule = mhar::full_schedule(2);
  options.output_norm = true;
  const sweep_case<double> data{options, 502};
  run_choices choices = streaming(options.schedule);
  choices.wanted.output_norm_weight = mhar::parameter_gradient::frozen;
  run_type run{data, choices};
  run.forward();
  run.begin_backward();
  const auto missing = [&](const std::function<void(mhar::call_upstream&)>& forget) {
    mhar::call_upstream upstream = run.upstream(1);
    forget(upstream);
    const mhar::status outcome = run.router().backward_call(run.context(), 1, upstream);
    CHECK(outcome.code == mhar::code::missing_argument);
    return std::string{outcome.argument};
  };
  CHECK(missing([](auto& given) { given.output_gradient = {}; }) == "output_gradient");
  CHECK(missing([](auto& given) { given.combined = {}; }) == "combined");
  CHECK(missing([](auto& given) { given.mix = {}; }) == "mix");
  for (int n = 1; n >= 0; --n) {
    run.backward_call(n);
    run.row_gradient(n);
  }
  double weight[6];
  mhar::site_gradients asked[2];
  asked[0].output_norm_weight = weight;
  CHECK(run.router().finish_backward(run.context(), asked).code == mhar::code::bad_value);
  asked[0] = {};
  CHECK(run.router().finish_backward(run.context(), asked).ok());
}

TEST_CASE("router: configurations are refused by the name of what is wrong")
{
  const auto data = full_case(4);
  const mhar::router_config good =
      run_type{data, streaming(data.options.schedule)}.router().config();
  CHECK(mhar::validate<double>(good).ok());
  const auto refused = [&](const std::function<void(mhar::router_config&)>& spoil) {
    mhar::router_config config = good;
    spoil(config);
    const mhar::status outcome = mhar::validate<double>(config);
    CHECK_FALSE(outcome.ok());
    CHECK_THROWS_AS((mhar::depth_router<naive_backend, double>{config}), mhar::invalid_argument);
    return std::string{outcome.argument};
  };
  static const double number = 1;
  CHECK(refused([](auto& c) { c.extent.num_positions = -1; }) == "extent.num_positions");
  CHECK(refused([](auto& c) { c.extent.num_positions = std::int64_t{1} << 55; }) ==
        "extent.num_positions");
  CHECK(refused([](auto& c) {  // a row alone would do
          c.extent = {std::int64_t{1} << 39, std::int64_t{1} << 19, 1};
        }) == "extent.num_positions");
  CHECK(refused([](auto& c) { c.extent.width = 0; }) == "extent.width");
  CHECK(refused([](auto& c) { c.extent.num_heads = 4; }) == "extent.num_heads");
  CHECK(refused([](auto& c) { c.extent.norm_width = 5; }) == "extent.norm_width");
  CHECK(refused([](auto& c) { c.plan = {}; }) == "schedule.num_rows");
  CHECK(refused([](auto& c) {
          c.plan.forward = mhar::streaming_plan(mhar::full_schedule(3)).forward;
        }) == "plan.forward");
  CHECK(refused([](auto& c) { c.plan.backward = {}; }) == "plan.backward");
  CHECK(refused([](auto& c) { c.queries_per_site = 3; }) == "queries_per_site");
  CHECK(refused([](auto& c) { c.queries_per_site = 2; }) == "sites");
  CHECK(refused([](auto& c) {
          c.queries_per_site = 2;
          c.sites.resize(2);
        }) == "schedule");  // two queries of one site with different rows
  CHECK(refused([](auto& c) { c.sites[1].parameters.query = {}; }) == "query");
  CHECK(refused([](auto& c) { c.sites[1].parameters.eps = 0; }) == "eps");
  CHECK(refused([](auto& c) { c.sites[1].parameters.eps = 1; }) == "eps");
  CHECK(refused([](auto& c) { c.sites[2].parameters.eps = std::nan(""); }) == "eps");
  CHECK(refused([](auto& c) { c.sites[2].parameters.scale = std::nan(""); }) == "scale");
  CHECK(refused([](auto& c) {
          c.sites[0].parameters.rounding = static_cast<mhar::key_rounding>(7);
        }) == "rounding");
  CHECK(refused([](auto& c) {
          c.sites[3].parameters.norm_weight.type = static_cast<mhar::element>(9);
        }) == "norm_weight");
  CHECK(refused([](auto& c) {
          c.sites[1].stage.norm = mhar::output_norm::none;
          c.sites[1].stage.norm_weight = &number;
        }) == "stage.norm_weight");
  CHECK(refused([](auto& c) { c.sites[1].stage.norm = static_cast<mhar::output_norm>(7); }) ==
        "norm");
  CHECK(refused([](auto& c) {
          for (auto& site : c.sites) {
            site.parameters.rounding = mhar::key_rounding::storage_twice;
          }
        }) == "rounding");
  CHECK(refused([](auto& c) { c.sites[1].parameters.null_source = {&number}; }) == "null_source");
  CHECK(refused([](auto& c) { c.sites[1].stage.partial = {&number, 6}; }) == "partial");
  CHECK(refused([](auto& c) {
          c.sites[1].stage.norm = mhar::output_norm::rms;
          c.sites[1].stage.norm_eps = 0;
        }) == "norm_eps");
  CHECK(refused([](auto& c) {
          c.extent.norm_width = 12;
          c.sites[1].stage.norm = mhar::output_norm::rms;
        }) == "norm_width");
  CHECK(refused([](auto& c) { c.call_state = mhar::element::bfloat16; }) ==
        "call_state, row_state");
  CHECK(refused([](auto& c) { c.position_stride = 5; }) == "position_stride");
  CHECK(refused([](auto& c) { c.use = static_cast<mhar::router_use>(5); }) == "use");
  CHECK(refused([](auto& c) { c.rows = static_cast<mhar::row_home>(5); }) == "rows");
  CHECK(refused([](auto& c) { c.mixes = static_cast<mhar::mix_keeper>(5); }) == "mixes");
  CHECK(refused([](auto& c) { c.gradients = static_cast<mhar::gradient_home>(5); }) == "gradients");
  CHECK(refused([](auto& c) { c.wanted.bias = static_cast<mhar::parameter_gradient>(5); }) ==
        "wanted");
  CHECK(refused([](auto& c) {
          c.rows = mhar::row_home::listed;
          c.gradients = mhar::gradient_home::dead_rows;
        }) == "gradients");
  CHECK(refused([](auto& c) {
          c.use = mhar::router_use::inference;
          c.mixes = mhar::mix_keeper::router;
        }) == "use");
  CHECK(refused(
            [](auto& c) {  // delta mode without a null source: the first call has no source at all
              c.plan = mhar::streaming_plan(mhar::delta_schedule(4, 2));
            }) == "schedule");
}
