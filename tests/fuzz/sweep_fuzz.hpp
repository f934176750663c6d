// SPDX-License-Identifier: Apache-2.0
//! One fuzzed sweep, any backend: a random model pass by a random plan, with everything in one arena, steps out of turn in between,
//! and one verb's problem spoilt before the verb runs. What is refused changes nothing, what is served is as fuzz/spoilt.hpp
//! says, and in the end the pass gives what its calls give one by one.
#pragma once

#include "fuzz/sweep_memory.hpp"
#include "fuzz/sweep_spoiler.hpp"
#include "fuzz/sweep_verbs.hpp"
#include "router/random_sweep.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <vector>

namespace mhar_test {

//! What is going on in the sweep that runs: where its memory is, and which of its verbs is spoilt.
template <class Inner>
struct sweep_fuzz_state
{
  using arena_type =
      fuzz_memory<typename Inner::memory, Inner::arena_bytes / 4 * 3, Inner::arena_bytes>;

  Inner inner;
  arena_type arena;
  entropy* choices = nullptr;
  int verbs_until_spoilt = -1;  //!< none is when negative
  int num_calls = 0;            //!< what lists are as long as
  int num_rows = 0;

  static sweep_fuzz_state& current()
  {
    static sweep_fuzz_state state;
    return state;
  }
};

//! Whether a problem may be put to a verb: lists are as long as the ranges that it reads of them, and ranges no longer than
//! validation goes through quickly.
template <class T>
bool is_askable(const mhar::advance_problem<T>& problem, int, int num_rows)
{
  return problem.num_calls <= 2000 && problem.num_rows <= 2000 &&
         (problem.rows.list == nullptr ||
          std::int64_t{problem.first_row} + problem.num_rows <= num_rows);
}
template <class T>
bool is_askable(const mhar::gather_problem<T>& problem, int num_calls, int num_rows)
{
  const bool lists_calls = problem.call_gradients.list != nullptr || problem.mixes.list != nullptr;
  return problem.num_calls <= 2000 && problem.num_rows <= 2000 &&
         (problem.rows.list == nullptr || problem.top_row < num_rows) &&
         (!lists_calls || std::int64_t{problem.first_call} + problem.num_calls <= num_calls);
}
template <class Problem>
bool is_askable(const Problem&, int, int)
{
  return true;
}

//! A problem to spoil, and the host arrays that it points to.
template <class Problem>
struct spoilable
{
  explicit spoilable(const Problem& original) : problem{original} {}

  Problem problem;
};
template <class T>
struct spoilable<mhar::fold_problem<T>>
{
  explicit spoilable(const mhar::fold_problem<T>& original)
      : problem{original},
        sites(original.sites, original.sites + original.num_calls),
        num_sources(original.num_sources, original.num_sources + original.num_calls)
  {
    problem.sites = sites.data();
    problem.num_sources = num_sources.data();
    problem.folded.packed = nullptr;
    if (original.gates == nullptr) { return; }
    gates.assign(original.gates, original.gates + original.num_calls);
    problem.gates = gates.data();
  }

  mhar::fold_problem<T> problem;
  std::vector<mhar::site_parameters> sites;
  std::vector<int> num_sources;
  std::vector<mhar::const_array> gates;
};
template <class T>
struct spoilable<mhar::reduce_problem<T>>
{
  explicit spoilable(const mhar::reduce_problem<T>& original)
      : problem{original},
        sites(original.sites, original.sites + original.num_sites),
        gradients(original.gradients, original.gradients + original.num_sites),
        num_bias(original.num_bias, original.num_bias + original.num_sites)
  {
    problem.sites = sites.data();
    problem.gradients = gradients.data();
    problem.num_bias = num_bias.data();
  }

  mhar::reduce_problem<T> problem;
  std::vector<mhar::site_parameters> sites;
  std::vector<mhar::site_gradients> gradients;
  std::vector<int> num_bias;
};

//! The backend of the router: memory out of the arena, and Inner's verbs, of which one gets a spoilt problem first.
template <class Inner>
struct sweep_fuzz_backend
{
  using verbs = typename Inner::sweep_verbs;
  using context = typename verbs::context;
  using state = sweep_fuzz_state<Inner>;

  template <class T>
  static mhar::status fold(const mhar::fold_problem<T>& problem, const context& where) noexcept
  {
    spoil<T>(problem);
    return verbs::fold(problem, where);
  }
  template <class T>
  static mhar::status advance(const mhar::advance_problem<T>& problem,
                              const context& where) noexcept
  {
    spoil<T>(problem);
    return verbs::advance(problem, where);
  }
  template <class T>
  static mhar::status output_gradient(const mhar::output_gradient_problem<T>& problem,
                                      const context& where) noexcept
  {
    spoil<T>(problem);
    return verbs::output_gradient(problem, where);
  }
  template <class T>
  static mhar::status gather(const mhar::gather_problem<T>& problem, const context& where) noexcept
  {
    spoil<T>(problem);
    return verbs::gather(problem, where);
  }
  template <class T>
  static mhar::status reduce(const mhar::reduce_problem<T>& problem, const context& where) noexcept
  {
    spoil<T>(problem);
    return verbs::reduce(problem, where);
  }
  static mhar::status zero(void* data, std::size_t bytes, const context& where) noexcept
  {
    return verbs::zero(data, bytes, where);
  }
  static int num_chunks(const mhar::shape& extent) noexcept { return verbs::num_chunks(extent); }
  template <class T>
  static std::size_t packed_bytes(const mhar::shape& extent, int num_calls) noexcept
  {
    return verbs::template packed_bytes<T>(extent, num_calls);
  }
  template <class T>
  static std::size_t workspace_bytes(const mhar::sweep_limits& limits) noexcept
  {
    return verbs::template workspace_bytes<T>(limits);
  }

private:
  template <class T, class Problem>
  static void spoil(const Problem& problem)
  {
    state& now = state::current();
    if (now.verbs_until_spoilt-- != 0) { return; }
    now.inner.wait();
    spoilable<Problem> copy{problem};
    Problem& spoilt = copy.problem;
    const std::vector<std::int64_t> starts = problem_memory{spoilt}.starts(now.arena);
    spoiler<typename state::arena_type> with{*now.choices, now.arena, starts};
    for (std::int64_t i = now.choices->integer(1, 3); i > 0; --i) { with(spoilt); }
    if (!is_askable(spoilt, now.num_calls, now.num_rows)) { return; }
    check_spoilt<T>(spoilt, *now.choices, now.inner, now.arena, starts);
  }
};

template <class Inner>
struct backend_access<sweep_fuzz_backend<Inner>>
{
  using state = sweep_fuzz_state<Inner>;

  static typename sweep_fuzz_backend<Inner>::context context()
  {
    return state::current().inner.context(nullptr, 0);
  }
  static void* allocate(std::size_t bytes)
  {
    auto& arena = state::current().arena;
    const std::int64_t start = arena.take(static_cast<std::int64_t>(bytes) + 1, 256, 0);
    if (start < 0) { throw std::bad_alloc{}; }
    arena.remember_start(start);
    return arena.data() + start;
  }
  static void release(void*) {}
  static void upload(void* to, const void* from, std::size_t bytes)
  {
    state::current().inner.wait();
    if (bytes != 0) { std::memcpy(to, from, bytes); }
  }
  static void download(void* to, const void* from, std::size_t bytes) { upload(to, from, bytes); }
};

//! Numbers that a sweep must keep in their place: NaN in a row or a query, zeros, weights of 0.
template <class T>
void put_special_values(sweep_case<T>& data, entropy& choices)
{
  using real = mhar::accumulate_t<T>;
  const auto any_of = [&](auto& values) -> auto*
  {
    using value = std::decay_t<decltype(values.front())>;
    return values.empty() ? static_cast<value*>(nullptr)
                          : &values[static_cast<std::size_t>(
                                choices.integer(0, static_cast<std::int64_t>(values.size()) - 1))];
  };
  const auto put = [](auto* at, double value) {
    if (at != nullptr) { *at = mhar::round_to<std::decay_t<decltype(*at)>>(value); }
  };
  constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
  for (std::int64_t i = choices.integer(1, 3); i > 0; --i) {
    auto* const site = any_of(data.sites);
    switch (choices.integer(0, 4)) {
      case 0:
        if (auto* const row = any_of(data.rows)) { put(any_of(*row), not_a_number); }
        break;
      case 1:
        if (auto* const row = any_of(data.rows)) { std::fill(row->begin(), row->end(), T{}); }
        break;
      case 2: put(any_of(site->query), not_a_number); break;
      case 3: put(any_of(site->bias), -std::numeric_limits<double>::infinity()); break;
      default: std::fill(site->query.begin(), site->query.end(), real{0}); break;
    }
  }
}

//! Steps that are out of turn whenever they are taken; each is refused.
template <class Run>
void step_out_of_turn(Run& run, entropy& choices, int next_call, bool in_backward, int num_calls)
{
  auto& router = run.router();
  int call = static_cast<int>(choices.integer(-1, num_calls));
  if (call == next_call) { --call; }
  const auto refused = [](const mhar::status& outcome) {
    fuzz_require(!outcome.ok(), "a step out of turn was taken");
    fuzz_require(outcome.argument[0] != 0 && outcome.message[0] != 0, "a refusal without words");
  };
  switch (choices.integer(0, 5)) {
    case 0: refused(router.route(run.context(), in_backward ? next_call : call, {}, {})); break;
    case 1: refused(router.backward_call(run.context(), call, {})); break;
    case 2: refused(router.row_gradient(run.context(), -1, {})); break;
    case 3: refused(router.finish_backward(run.context(), nullptr)); break;
    case 4: refused(router.gather_row(run.context(), call)); break;
    default:
      refused(in_backward ? router.begin_backward(run.context())
                          : router.begin_recompute(run.context(), call, num_calls + 1));
      break;
  }
}

//! The whole pass, with calls recomputed on the way where that is possible.
template <class Run, class T>
void run_pass(Run& run, const sweep_case<T>& data, entropy& choices, bool recomputes)
{
  const int calls = data.num_calls();
  const auto again = [&](int call) {
    if (!recomputes || !choices.once_in(4)) { return; }
    for (const auto& [name, lists] : run.recompute(call)) {
      const auto& first = run.results()[name][static_cast<std::size_t>(call)];
      const bool same = std::equal(first.begin(), first.end(), lists.front().begin(),
                                   [](double a, double b) { return close(a, b, {}); });
      fuzz_require(same, "a call again has other bits: " + name);
    }
  };
  run.begin_forward();
  for (int c = 0; c < calls; ++c) {
    if (choices.once_in(4)) { step_out_of_turn(run, choices, c, false, calls); }
    run.route(c);
    again(static_cast<int>(choices.integer(0, c)));
  }
  run.begin_backward();
  int row = data.num_rows() - 1;
  for (int c = calls - 1; c >= 0; --c) {
    for (; row >= data.rows_of(c); --row) { run.row_gradient(row); }
    if (choices.once_in(4)) { step_out_of_turn(run, choices, c, true, calls); }
    again(c);
    run.backward_call(c);
  }
  for (; row >= 0; --row) { run.row_gradient(row); }
  run.finish_backward();
}

//! Plain loops with roundings in the same places. A last bit of a sum may decide one of them, and later sums may cancel.
template <class T>
constexpr double rounded_tolerance = 32 * tolerance_of<T>().relative;

template <class T>
sweep_results naive_results(const sweep_case<T>& data, const run_choices& how)
{
  sweep_run<naive_backend, T> run{data, how};
  run.forward();
  return run.backward();
}

template <class T, class Inner>
void fuzz_sweep(entropy& choices)
{
  using backend = sweep_fuzz_backend<Inner>;
  sweep_options options = random_options(choices);
  bool fast = false;
  if constexpr (constexpr auto& widths = Inner::fast_head_widths; !widths.empty()) {
    fast = choices.once_in(2);
    if (fast) {
      const auto last = static_cast<std::int64_t>(widths.size()) - 1;
      options.extent.width =
          options.extent.num_heads * widths[static_cast<std::size_t>(choices.integer(0, last))];
    }
  }
  run_choices how = random_choices<T>(options.schedule, choices);
  const bool exact = choices.once_in(2);
  if (exact) { keep_exact<T>(options, how); }
  if (sizeof(T) > 2 && choices.once_in(3)) { options.rounding = mhar::key_rounding::storage; }
  const bool recomputes = choices.once_in(3);
  if (recomputes) { how.recompute_calls = 1; }
  sweep_case<T> data{options, random_inputs::seeded(choices.bits())};
  const bool judged =
      exact || sizeof(T) > 2;  // by the reference, which knows what special values come to
  // Products on tensor cores are formed whole, whatever their factors.
  if (Inner::keeps_non_finite && judged && !fast && choices.once_in(3)) {
    put_special_values(data, choices);
  }

  auto& now = sweep_fuzz_state<Inner>::current();
  now.arena.clear();
  now.choices = &choices;
  now.num_calls = data.num_calls();
  now.num_rows = data.num_rows();
  now.verbs_until_spoilt = static_cast<int>(choices.integer(0, 3 * data.num_calls() + 1));
  const std::string text = described(options, how);
  try {
    sweep_run<backend, T> run{data, how};
    run_pass(run, data, choices, recomputes);
    const sweep_distance worst = judged ? distance(run.results(), data.expected())
                                        : distance(run.results(), naive_results(data, how));
    fuzz_require(worst.largest <= (judged ? sweep_tolerance<T> : rounded_tolerance<T>),
                 text + ": " + worst.name + " is off by " + std::to_string(worst.largest));
  } catch (const std::bad_alloc&) {
    return;  // more than the arena holds
  } catch (const std::exception& refused) {
    fuzz_failed(text + ": " + refused.what());
  }
}

//! One input of the fuzzer.
template <class Inner>
void fuzz_one_sweep(entropy& choices)
{
  switch (choices.integer(0, 3)) {
    case 0: fuzz_sweep<float, Inner>(choices); break;
    case 1: fuzz_sweep<mhar::bfloat16, Inner>(choices); break;
    case 2: fuzz_sweep<mhar::float16, Inner>(choices); break;
    default: fuzz_sweep<double, Inner>(choices); break;
  }
}

}  // namespace mhar_test
