// SPDX-License-Identifier: Apache-2.0
//! What may follow a mix, one by one and together: the results are those of single calls, outputs of
//! 16 bits are the wide ones rounded, and recompute gives the bits of the forward.
#pragma once

#include "sweep_bodies.hpp"

namespace mhar_test {

struct call_end
{
  const char* name;
  bool gate;
  bool partial;
  bool output_norm;
  bool private_rows;
};

inline constexpr call_end call_ends[] = {
    {"nothing", false, false, false, false}, {"gate", true, false, false, false},
    {"partial", false, true, false, false},  {"norm", false, false, true, false},
    {"private", false, false, false, true},  {"gate, partial, norm", true, true, true, false},
    {"all", true, true, true, true}};

//! Full mode, or block mode where there are private rows: passes on both sides of what stays in
//! registers, and calls that end without one.
inline sweep_options options_of(const call_end& end, const mhar::shape& extent, int num_calls,
                                bool null_source)
{
  sweep_options options;
  options.extent = extent;
  options.schedule =
      end.private_rows ? mhar::block_schedule(num_calls, 2) : mhar::full_schedule(num_calls);
  options.null_source = null_source;
  options.gate = end.gate;
  options.partial = end.partial;
  options.output_norm = end.output_norm;
  return options;
}

//! The forward's results of `all` that are given in `names`.
inline sweep_results only(const sweep_results& all, std::initializer_list<const char*> names)
{
  sweep_results some;
  for (const char* const name : names) { some[name] = all.at(name); }
  return some;
}

template <class T>
bool are_rounded(const std::vector<std::vector<double>>& narrow,
                 const std::vector<std::vector<double>>& wide)
{
  for (std::size_t c = 0; c < wide.size(); ++c) {
    for (std::size_t i = 0; i < wide[c].size(); ++i) {
      const double rounded = mhar::widen<double>(mhar::round_to<T>(static_cast<float>(wide[c][i])));
      if (rounded != narrow[c][i]) { return false; }
    }
  }
  return true;
}

template <class Backend, class T>
void calls_end_alike(const sweep_options& options, const mhar::depth_plan& plan,
                     mhar::element call_state)
{
  const sweep_case<T> data{options, 520};
  const auto names = {"y", "combined", "mix", "lse"};
  run_choices choices;
  choices.plan = plan;
  choices.call_state = call_state;
  choices.row_state = mhar::element::float32;
  choices.recompute_calls = 1;
  choices.narrow_mixes = false;
  sweep_run<Backend, T> wide{data, choices};
  wide.forward();
  const sweep_results forward = wide.results();
  const sweep_distance worst =
      distance(wide.backward(),
               only(data.expected(), {"row_gradient", "query", "norm_weight", "null_source"}));
  CHECK_MESSAGE(worst.largest <= other_side<T>, worst.name << " is off by " << worst.largest);
  if (call_state == mhar::element::float32) {
    check_close<T>(only(forward, names), only(data.expected(), names));
  }

  // Without `combined`, y alone is all that many a call is asked for.
  choices.narrow_outputs = true;
  sweep_run<Backend, T> narrow{data, choices};
  narrow.forward();
  const sweep_results first = narrow.results();
  CHECK(are_rounded<T>(first.at("y"), forward.at("y")));
  for (auto* const run : {&wide, &narrow}) {
    const sweep_results& before = run == &wide ? forward : first;
    for (int c = 0; c < data.num_calls(); ++c) {
      CAPTURE(c);
      for (const auto& output : run->recompute(c)) {
        const bool same =
            output.second.front() == before.at(output.first)[static_cast<std::size_t>(c)];
        CHECK_MESSAGE(same, output.first);
      }
    }
  }
}

//! Every ending for a width.
template <class Backend, class T = mhar::bfloat16>
void every_ending(const mhar::shape& extent, int num_calls, bool null_source = false)
{
  random_inputs random{521};
  for (const call_end& end : call_ends) {
    CAPTURE(end.name);
    CAPTURE(extent.width);
    CAPTURE(extent.num_heads);
    const sweep_options options = options_of(end, extent, num_calls, null_source);
    const auto type = mhar::element_of<T>::value;
    mhar::plan_costs costs = mhar::costs_of(options.extent, type, type, type);
    costs.max_members = 16;
    calls_end_alike<Backend, T>(options, mhar::cheapest_plan(options.schedule, costs),
                                mhar::element::float32);
    calls_end_alike<Backend, T>(options, random_plan(options.schedule, random),
                                mhar::element::float32);
    calls_end_alike<Backend, T>(options, random_plan(options.schedule, random), type);
  }
}

}  // namespace mhar_test
