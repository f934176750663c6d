// SPDX-License-Identifier: Apache-2.0
//! Random sweeps: what the calls are, and how a model runs them. `Random` has integer(low, high).
#pragma once

#include "random_plan.hpp"
#include "sweep_run.hpp"

#include <sstream>
#include <string>

namespace mhar_test {

//! Round-off of the arithmetic in sums of up to 20000 terms, relative to the largest element. It
//! holds for 16-bit rows, too, as long as nothing but the rows and dy is rounded to their type: see
//! keep_exact.
template <class T>
constexpr double sweep_tolerance = sizeof(mhar::accumulate_t<T>) == 8 ? 1e-11 : 2e-4;

//! Leaves no value but rows and dy to be rounded to a 16-bit type: do is dy, and mixes and states
//! are wide.
template <class T>
void keep_exact(sweep_options& options, run_choices& choices)
{
  if (sizeof(T) > 2) { return; }
  options.output_norm = options.combined_gradient = false;
  choices.call_state = choices.row_state = mhar::element_of<mhar::accumulate_t<T>>::value;
  choices.narrow_mixes = false;
}

template <class Random>
mhar::depth_schedule random_schedule(Random& random)
{
  const int num_calls = static_cast<int>(random.integer(1, 9));
  const int per_block = static_cast<int>(random.integer(1, 4));
  switch (random.integer(0, 3)) {
    case 0: return mhar::full_schedule(num_calls);
    case 1: return mhar::delta_schedule(num_calls, per_block);
    case 2: return mhar::block_schedule(num_calls, per_block);
    default: break;
  }
  mhar::depth_schedule schedule;  // rows in bursts, and private rows anywhere
  int rows = 0;
  for (int call = 0; call < num_calls; ++call) {
    rows += static_cast<int>(random.integer(0, 3));
    schedule.num_rows.push_back(rows);
    const bool has_private = rows == 0 || random.integer(0, 2) == 0;
    schedule.private_rows.push_back(has_private ? mhar::private_row::present
                                                : mhar::private_row::absent);
  }
  return schedule;
}

template <class Random>
sweep_options random_options(Random& random)
{
  static constexpr int head_widths[] = {1, 2, 3, 8, 20};
  sweep_options options;
  const auto heads = static_cast<int>(random.integer(1, 4));
  options.extent = {random.integer(1, 5), heads * head_widths[random.integer(0, 4)], heads};
  options.queries_per_site = static_cast<int>(random.integer(0, 2) == 0 ? 3 : 1);
  options.schedule = mhar::repeated(random_schedule(random), options.queries_per_site);
  const bool plain =
      random.integer(0, 2) == 0;  // mixes and nothing else: D comes from the passes themselves
  const auto coin = [&] { return !plain && random.integer(0, 1) == 1; };
  options.norm_weight = coin();
  options.bias = coin();
  options.null_source = options.schedule.num_rows.front() == 0 || coin();
  options.gate = coin();
  options.partial = coin();
  options.output_norm = coin();
  options.combined_gradient = coin();
  if (random.integer(0, 4) == 0) { options.gate_value = 0; }
  return options;
}

template <class T, class Random>
run_choices random_choices(const mhar::depth_schedule& schedule, Random& random)
{
  constexpr mhar::element wide = mhar::element_of<mhar::accumulate_t<T>>::value;
  constexpr mhar::element narrow = mhar::element_of<T>::value;
  const auto coin = [&random] { return random.integer(0, 1) == 1; };
  run_choices choices;
  choices.plan = random_plan(schedule, random);
  choices.call_state = coin() ? wide : narrow;
  choices.row_state = coin() ? wide : narrow;
  choices.rows = static_cast<mhar::row_home>(random.integer(0, 2));
  if (choices.rows != mhar::row_home::listed && coin()) {
    choices.gradients = mhar::gradient_home::dead_rows;
  }
  choices.mixes = coin() ? mhar::mix_keeper::router : mhar::mix_keeper::caller;
  choices.upstream = static_cast<upstream_home>(random.integer(0, 2));
  return choices;
}

//! What a failing random case was made of.
inline std::string described(const sweep_options& options, const run_choices& choices)
{
  std::ostringstream text;
  text << "P " << options.extent.num_positions << " d " << options.extent.width << " H "
       << options.extent.num_heads << " R " << options.queries_per_site << " rows";
  for (int c = 0; c < options.schedule.num_calls(); ++c) {
    text << " " << options.schedule.num_rows[static_cast<std::size_t>(c)]
         << (options.schedule.has_private(c) ? "+" : "") << "/"
         << choices.plan.forward.pass(c).num_members;
  }
  text << " bias " << options.bias << " null " << options.null_source << " gate " << options.gate
       << " partial " << options.partial << " norm " << options.output_norm << " home "
       << static_cast<int>(choices.rows) << static_cast<int>(choices.gradients)
       << static_cast<int>(choices.mixes) << " dy " << static_cast<int>(choices.upstream);
  return text.str();
}

}  // namespace mhar_test
