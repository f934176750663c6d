// SPDX-License-Identifier: Apache-2.0
//! What a sweep must come to, whatever backend runs it: bodies of test cases over a backend and an
//! element type.
#pragma once

#include "cpu_access.hpp"
#include "random_sweep.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <type_traits>

namespace mhar_test {

//! A backend and the element of the rows, as one type for TEST_CASE_TEMPLATE.
template <class Backend, class T>
struct sweep_on
{
  using backend = Backend;
  using element = T;
};

template <class T>
void check_close(const sweep_results& actual, const sweep_results& expected)
{
  const sweep_distance worst = distance(actual, expected);
  CHECK_MESSAGE(worst.largest <= sweep_tolerance<T>, worst.name << " is off by " << worst.largest);
}

template <class Backend, class T>
void random_sweeps_equal_single_calls(int rounds, std::uint64_t stream)
{
  random_inputs random{stream};
  for (int round = 0; round < number_of_calls(rounds); ++round) {
    sweep_options options = random_options(random);
    run_choices choices = random_choices<T>(options.schedule, random);
    keep_exact<T>(options, choices);
    const std::string text = described(options, choices);
    CAPTURE(text);
    const sweep_case<T> data{options, stream + 1000 + static_cast<std::uint64_t>(round)};
    sweep_run<Backend, T> run{data, choices};
    run.forward();
    check_close<T>(run.backward(), data.expected());
  }
}

//! Relative to the largest element, what roundings to T that fall to the other side may come to.
template <class T>
constexpr double other_side = std::is_same_v<T, mhar::bfloat16> ? 2e-2 : 2.5e-3;

//! Rows of T, a 16-bit type, by the cheapest plan and by a random one: exact with float states, and
//! with mixes, states and rows' gradients of 16 bits, the other choices being those given, what the
//! CPU backend makes of the same roundings, but for those that fall to the other side.
template <class Backend, class T = mhar::bfloat16>
void both_states_equal_single_calls(const sweep_options& options, std::uint64_t stream,
                                    random_inputs& random, run_choices narrow)
{
  const sweep_case<T> data{options, stream};
  const sweep_results expected = data.expected();
  const auto type = mhar::element_of<T>::value;
  mhar::plan_costs costs = mhar::costs_of(options.extent, type, type, type);
  costs.max_members = 16;
  for (const mhar::depth_plan& plan :
       {mhar::cheapest_plan(options.schedule, costs), random_plan(options.schedule, random)}) {
    run_choices exact;
    exact.plan = plan;
    exact.call_state = exact.row_state = mhar::element::float32;
    exact.narrow_mixes = false;
    sweep_run<Backend, T> run{data, exact};
    run.forward();
    check_close<T>(run.backward(), expected);

    narrow.plan = plan;
    narrow.call_state = narrow.row_state = type;
    narrow.narrow_mixes = narrow.narrow_gradients = true;
    sweep_run<mhar::cpu::backend, T> alike{data, narrow};
    alike.forward();
    sweep_run<Backend, T> rounded{data, narrow};
    rounded.forward();
    const sweep_distance worst = distance(rounded.backward(), alike.backward());
    CHECK_MESSAGE(worst.largest <= other_side<T>, worst.name << " is off by " << worst.largest);
  }
}

//! Full mode at awkward sizes, by the cheapest plan.
template <class Backend, class T>
void awkward_shapes_equal_single_calls()
{
  struct sizes
  {
    int num_calls;
    std::int64_t positions, head_width;
    int heads;
  };
  for (const sizes each : {sizes{1, 1, 1, 1}, sizes{1, 7, 3, 2}, sizes{2, 1, 160, 1},
                           sizes{2, 0, 3, 2}, sizes{13, 7, 3, 7}, sizes{13, 1, 160, 2},
                           sizes{13, 0, 8, 2}, sizes{73, 7, 1, 3}, sizes{73, 1, 20, 4}}) {
    sweep_options options;
    options.extent = {each.positions, each.head_width * each.heads, each.heads};
    options.schedule = mhar::full_schedule(each.num_calls);
    constexpr mhar::element type = mhar::element_of<T>::value;
    run_choices choices;
    choices.plan =
        mhar::cheapest_plan(options.schedule, mhar::costs_of(options.extent, type, type, type));
    choices.call_state = choices.row_state = mhar::element_of<mhar::accumulate_t<T>>::value;
    keep_exact<T>(options, choices);
    const sweep_case<T> data{options, 300 + static_cast<std::uint64_t>(each.num_calls)};
    CAPTURE(each.num_calls);
    CAPTURE(each.positions);
    CAPTURE(each.head_width);
    sweep_run<Backend, T> run{data, choices};
    run.forward();
    check_close<T>(run.backward(), data.expected());
  }
}

//! NaN in the query of the first call, which has one source, in that of a later one, and in a row: the reference says how far it
//! gets, and that a source of NaN is not a source without weight.
template <class Backend, class T>
void what_is_not_a_number_stays_in_its_place()
{
  constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
  sweep_options options;
  options.extent = {3, 24, 3};
  options.schedule = mhar::full_schedule(5);
  random_inputs random{320};
  for (const int place : {0, 1, 2}) {
    for (int round = 0; round < number_of_calls(4); ++round) {
      CAPTURE(place);
      CAPTURE(round);
      run_choices choices = random_choices<T>(options.schedule, random);
      keep_exact<T>(options, choices);
      sweep_case<T> data{options, 321};
      if (place == 2) { data.rows[1][13] = mhar::round_to<T>(not_a_number); }
      else {
        data.sites[place == 0 ? 0 : 3].query[9] =
            mhar::round_to<mhar::accumulate_t<T>>(not_a_number);
      }
      sweep_run<Backend, T> run{data, choices};
      run.forward();
      check_close<T>(run.backward(), data.expected());
    }
  }
}

//! Whether a key lies so close to the middle of two 16-bit numbers that the round-off of r decides.
template <class T, class Source>
bool has_key_at_tie(const std::vector<Source>& values, std::int64_t width)
{
  if constexpr (sizeof(T) == 2) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t start = i - i % static_cast<std::size_t>(width);
      const auto s = mhar::widen<double>(values[i]);
      const double value =
          s * static_cast<double>(inverse_rms(&values[start], width, width, 1e-5f));
      if (mhar::round_to<T>(value * (1 - 1e-6)).bits !=
          mhar::round_to<T>(value * (1 + 1e-6)).bits) {
        return true;
      }
    }
  }
  return false;
}

//! Keys rounded to storage: the reference rounds the same keys to the same numbers.
template <class Backend, class T>
void rounded_keys_equal_single_calls()
{
  sweep_options options;
  options.extent = {5, 24, 3};
  options.rounding = mhar::key_rounding::storage;
  random_inputs random{310};
  for (const bool null_source : {false, true}) {
    options.null_source = null_source;
    options.schedule = null_source ? mhar::delta_schedule(9, 3) : mhar::full_schedule(7);
    run_choices choices = random_choices<T>(options.schedule, random);
    keep_exact<T>(options, choices);
    sweep_case<T> data{options, 311};
    const auto away_from_ties = [&random, &options](auto& values) {
      while (has_key_at_tie<T>(values, options.extent.width)) {
        random.fill(values.data(), static_cast<std::int64_t>(values.size()));
      }
    };
    for (auto& row : data.rows) { away_from_ties(row); }
    for (auto& site : data.sites) { away_from_ties(site.null_source); }
    sweep_run<Backend, T> run{data, choices};
    run.forward();
    check_close<T>(run.backward(), data.expected());
  }
}

//! Everything that may be rounded to the rows' type is: mixes, states and do. An error of many
//! terms is measured by its norm.
template <class Backend, class T>
void rounded_storage_adds_little()
{
  sweep_options options;
  options.extent = {16, 64, 4};
  options.schedule = mhar::full_schedule(13);
  random_inputs random{315};
  for (int round = 0; round < 4; ++round) {
    run_choices choices;
    choices.plan = random_plan(options.schedule, random);
    choices.call_state = choices.row_state = mhar::element_of<T>::value;
    const sweep_case<T> data{options, 316};
    sweep_run<Backend, T> run{data, choices};
    run.forward();
    const double unit = mhar::element_of<T>::value == mhar::element::bfloat16 ? 0x1p-8 : 0x1p-11;
    for (const auto& error : relative_errors(run.backward(), data.expected())) {
      CHECK_MESSAGE(error.second <= 4 * unit,
                    error.first << " is off by " << error.second / unit << " units");
    }
  }
}

//! Runs the same pass twice with the same plan, in different memory and with other homes.
template <class Backend, class T>
void same_bits_in_other_homes(const sweep_options& options, run_choices choices)
{
  choices.upstream = upstream_home::buffers;  // D from dy itself, whatever the home
  const sweep_case<T> data{options, 321};
  sweep_run<Backend, T> first{data, choices};
  first.forward();
  first.backward();
  choices.rows = mhar::row_home::listed;
  choices.gradients = mhar::gradient_home::block;
  sweep_run<Backend, T> second{data, choices};
  second.forward();
  CHECK(first.results() == second.backward());
  second.forward();  // the same router once more
  CHECK(first.results() == second.backward());
}

template <class Backend, class T>
void same_plan_gives_same_bits()
{
  random_inputs random{320};
  for (int round = 0; round < number_of_calls(6); ++round) {
    const sweep_options options = random_options(random);
    const run_choices choices = random_choices<T>(options.schedule, random);
    const std::string text = described(options, choices);
    CAPTURE(text);
    same_bits_in_other_homes<Backend, T>(options, choices);
  }
  // Of rows that come together all but the last end in passes without calls. First they lie at odd
  // distances.
  sweep_options burst;
  burst.extent = {100, 40, 5};
  burst.schedule = {{2, 5}, {}};
  run_choices choices;
  choices.plan = mhar::custom_plan(burst.schedule, {1, 1}, {3, 1, 1, 2, 1});
  choices.call_state = choices.row_state = mhar::element_of<T>::value;
  choices.rows = mhar::row_home::strided;
  same_bits_in_other_homes<Backend, T>(burst, choices);
}

//! Calls again, alone and in groups, in the forward, when it is over and in the backward: bits,
//! whatever the plan.
template <class Backend, class T>
void recompute_gives_the_bits_of_the_forward()
{
  random_inputs random{330};
  for (int round = 0; round < number_of_calls(8); ++round) {
    sweep_options options = random_options(random);
    run_choices choices = random_choices<T>(options.schedule, random);
    keep_exact<T>(options, choices);
    choices.recompute_calls = options.schedule.num_calls();
    const std::string text = described(options, choices);
    CAPTURE(text);
    const sweep_case<T> data{options, 331};
    sweep_run<Backend, T> run{data, choices};
    const auto same = [&](int c) {
      const sweep_results again = run.recompute(c);
      for (const auto& [name, lists] : again) {
        CHECK(lists.front() == run.results()[name][static_cast<std::size_t>(c)]);
      }
    };
    run.begin_forward();
    for (int c = 0; c < data.num_calls(); ++c) {
      run.route(c);
      same(static_cast<int>(random.integer(0, c)));
    }
    for (int c = 0; c < data.num_calls(); ++c) { same(c); }
    for (int group = 0; group < 4; ++group) {
      const int first = static_cast<int>(random.integer(0, data.num_calls() - 1));
      const int count = static_cast<int>(random.integer(1, data.num_calls() - first));
      mhar::check(run.router().begin_recompute(run.context(), first, count));
      for (int c = first; c < first + count; ++c) { same(c); }
    }
    run.begin_backward();
    int row = data.num_rows() - 1;
    for (int c = data.num_calls() - 1; c >= 0; --c) {
      for (; row >= data.rows_of(c); --row) { run.row_gradient(row); }
      if (c % 3 == 0) {  // as a checkpointed block of sublayers does before its backward
        const int first = std::max(c - 2, 0);
        mhar::check(run.router().begin_recompute(run.context(), first, c + 1 - first));
        for (int member = first; member <= c; ++member) { same(member); }
      }
      same(c);
      run.backward_call(c);
    }
    for (; row >= 0; --row) { run.row_gradient(row); }
    run.finish_backward();
    check_close<T>(run.results(), data.expected());
  }
}

//! Two passes of different plans, call by call in turn, as pipelined micro-batches are.
template <class Backend, class T>
void interleaved_routers_do_not_mix()
{
  random_inputs random{340};
  sweep_options options;
  options.extent = {3, 12, 3};
  options.schedule = mhar::full_schedule(9);
  const sweep_case<T> data[] = {{options, 341}, {options, 342}};
  std::vector<std::unique_ptr<sweep_run<Backend, T>>> runs;
  for (const sweep_case<T>& each : data) {
    run_choices choices = random_choices<T>(options.schedule, random);
    keep_exact<T>(options, choices);
    runs.push_back(std::make_unique<sweep_run<Backend, T>>(each, choices));
    runs.back()->begin_forward();
  }
  for (int c = 0; c < 9; ++c) {
    for (auto& run : runs) { run->route(c); }
  }
  for (auto& run : runs) { run->begin_backward(); }
  for (int c = 8; c >= 0; --c) {
    for (auto& run : runs) { run->backward_call(c); }
    for (auto& run : runs) { run->row_gradient(c); }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    runs[i]->finish_backward();
    check_close<T>(runs[i]->results(), data[i].expected());
  }
}

//! Gradients of frozen kinds are absent, and the others are what they were.
template <class Backend, class T>
void frozen_parameters_change_no_other_gradient()
{
  random_inputs random{350};
  for (int kinds = 0; kinds < 32; ++kinds) {
    sweep_options options = random_options(random);
    options.bias = options.null_source = options.gate = options.output_norm = true;
    run_choices choices = random_choices<T>(options.schedule, random);
    const auto choose = [kinds](int bit) {
      return (kinds >> bit & 1) != 0 ? mhar::parameter_gradient::frozen
                                     : mhar::parameter_gradient::wanted;
    };
    keep_exact<T>(options, choices);
    choices.wanted = {choose(0), choose(1), choose(2), choose(3), choose(4)};
    const sweep_case<T> data{options, 351};
    sweep_run<Backend, T> run{data, choices};
    run.forward();
    run.backward();
    CHECK(run.results().count("query") == static_cast<std::size_t>((kinds & 1) == 0));
    CHECK(run.results().count("gate") == static_cast<std::size_t>((kinds & 8) == 0));
    check_close<T>(run.results(), data.expected());
  }
}

//! Every body, as cases of one suite.
#define MHAR_TEST_SWEEPS(...)                                                                     \
  TEST_CASE_TEMPLATE("router: random sweeps equal single calls", On, __VA_ARGS__)                 \
  {                                                                                               \
    mhar_test::random_sweeps_equal_single_calls<typename On::backend, typename On::element>(60,   \
                                                                                            200); \
  }                                                                                               \
  TEST_CASE_TEMPLATE("router: awkward shapes", On, __VA_ARGS__)                                   \
  {                                                                                               \
    mhar_test::awkward_shapes_equal_single_calls<typename On::backend, typename On::element>();   \
  }                                                                                               \
  TEST_CASE_TEMPLATE("router: keys rounded to storage", On, __VA_ARGS__)                          \
  {                                                                                               \
    mhar_test::rounded_keys_equal_single_calls<typename On::backend, typename On::element>();     \
  }                                                                                               \
  TEST_CASE_TEMPLATE("router: 16-bit storage", On, __VA_ARGS__)                                   \
  {                                                                                               \
    if (sizeof(typename On::element) == 2) {                                                      \
      mhar_test::rounded_storage_adds_little<typename On::backend, typename On::element>();       \
    }                                                                                             \
  }                                                                                               \
  TEST_CASE_TEMPLATE("router: same plan, same bits", On, __VA_ARGS__)                             \
  {                                                                                               \
    mhar_test::same_plan_gives_same_bits<typename On::backend, typename On::element>();           \
  }                                                                                               \
  TEST_CASE_TEMPLATE("router: recompute gives the forward's bits", On, __VA_ARGS__)               \
  {                                                                                               \
    mhar_test::recompute_gives_the_bits_of_the_forward<typename On::backend,                      \
                                                       typename On::element>();                   \
  }                                                                                               \
  TEST_CASE_TEMPLATE("router: two routers at once", On, __VA_ARGS__)                              \
  {                                                                                               \
    mhar_test::interleaved_routers_do_not_mix<typename On::backend, typename On::element>();      \
  }                                                                                               \
  TEST_CASE_TEMPLATE("router: frozen parameters", On, __VA_ARGS__)                                \
  {                                                                                               \
    mhar_test::frozen_parameters_change_no_other_gradient<typename On::backend,                   \
                                                          typename On::element>();                \
  }

}  // namespace mhar_test
