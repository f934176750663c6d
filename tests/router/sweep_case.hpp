// SPDX-License-Identifier: Apache-2.0
//! A random model pass of given rows and given upstream gradients, and what it must come to: every
//! call by the reference, alone.
#pragma once

#include "support/random.hpp"
#include "support/tolerance.hpp"

#include <mhar/reference/route.hpp>
#include <mhar/router/depth_plan.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace mhar_test {

struct sweep_options
{
  mhar::shape extent;
  mhar::depth_schedule schedule;
  int queries_per_site = 1;
  bool norm_weight = true;
  bool bias = false;
  bool null_source = false;
  bool gate = false;
  bool partial = false;
  bool output_norm = false;
  bool combined_gradient = false;
  double gate_value = 0.7;
  mhar::key_rounding rounding = mhar::key_rounding::none;
  double scale = 0.8;
};

//! One list per name: of calls ("y"), rows ("row_gradient") or sites ("query").
using sweep_results = std::map<std::string, std::vector<std::vector<double>>>;

template <class T>
struct sweep_case
{
  using real = mhar::accumulate_t<T>;

  struct site_values
  {
    std::vector<real> query, norm_weight, bias, null_source, gate, output_weight;
  };

  sweep_options options;
  std::vector<std::vector<T>> rows;               // [N][P*d]
  std::vector<std::vector<T>> private_rows;       // [S], empty where there is none
  std::vector<std::vector<T>> partials;           // [S]
  std::vector<std::vector<T>> dy;                 // [S]
  std::vector<std::vector<T>> combined_gradient;  // [S]
  std::vector<site_values> sites;

  sweep_case(const sweep_options& given, std::uint64_t stream)
      : sweep_case{given, random_inputs{stream}}
  {
  }
  sweep_case(const sweep_options& given, random_inputs random) : options{given}
  {
    const std::int64_t width = given.extent.width;
    const std::int64_t elements = given.extent.num_positions * width;
    for (int n = 0; n < given.schedule.total_rows(); ++n) {
      rows.push_back(random.vector<T>(elements));
    }
    for (int c = 0; c < num_calls(); ++c) {
      const bool has_private = given.schedule.has_private(c);
      private_rows.push_back(random.vector<T>(has_private ? elements : 0));
      partials.push_back(random.vector<T>(given.partial ? elements : 0));
      dy.push_back(random.vector<T>(elements));
      combined_gradient.push_back(random.vector<T>(given.combined_gradient ? elements : 0));
    }
    const double query_scale = 2 / std::sqrt(static_cast<double>(given.extent.head_width()));
    for (int c = 0; c < num_calls(); c += given.queries_per_site) {
      site_values site;
      site.query = random.vector<real>(given.queries_per_site * width, query_scale);
      site.norm_weight = random.vector<real>(given.norm_weight ? width : 0);
      site.bias = random.vector<real>(given.bias ? num_sources(c) : 0);
      site.null_source = random.vector<real>(given.null_source ? width : 0);
      if (given.gate) { site.gate = {static_cast<real>(given.gate_value)}; }
      site.output_weight = random.vector<real>(given.output_norm ? width : 0);
      sites.push_back(site);
    }
  }

  [[nodiscard]] int num_calls() const { return options.schedule.num_calls(); }
  [[nodiscard]] int num_rows() const { return options.schedule.total_rows(); }
  [[nodiscard]] int rows_of(int call) const
  {
    return options.schedule.num_rows[static_cast<std::size_t>(call)];
  }
  [[nodiscard]] int num_sources(int call) const
  {
    return rows_of(call) + (options.schedule.has_private(call) ? 1 : 0) +
           (options.null_source ? 1 : 0);
  }

  //! A site's options with parameters at `place(values)`: null when there are none.
  template <class Place>
  void describe(const site_values& site, mhar::site_parameters& parameters,
                mhar::output_stage& stage, Place place) const
  {
    parameters.query = place(site.query);
    parameters.norm_weight = place(site.norm_weight);
    parameters.bias = place(site.bias);
    parameters.null_source = place(site.null_source);
    parameters.scale = options.scale;
    parameters.eps = 1e-5;
    parameters.rounding = options.rounding;
    stage.gate = place(site.gate);
    stage.norm = options.output_norm ? mhar::output_norm::rms : mhar::output_norm::none;
    stage.norm_weight = place(site.output_weight);
    stage.norm_eps = 0.1;  // a tiny o would make much of every rounding error
  }

  [[nodiscard]] sweep_results expected() const
  {
    sweep_results results = empty_results();
    for (int c = 0; c < num_calls(); ++c) { expect_call(c, results); }
    return results;
  }

  //! The same parameters at positions [first, first + count): a micro-batch.
  [[nodiscard]] sweep_case positions(std::int64_t first, std::int64_t count) const
  {
    sweep_case part = *this;
    part.options.extent.num_positions = count;
    const std::int64_t width = options.extent.width;
    for (auto* const lists :
         {&part.rows, &part.private_rows, &part.partials, &part.dy, &part.combined_gradient}) {
      for (std::vector<T>& values : *lists) {
        if (values.empty()) { continue; }
        const auto start = values.begin() + first * width;
        values = std::vector<T>(start, start + count * width);
      }
    }
    return part;
  }

  //! The same positions with heads [first, first + count) alone: what one of several ranks holds.
  [[nodiscard]] sweep_case heads(int first, int count) const
  {
    sweep_case part = *this;
    const std::int64_t head_width = options.extent.head_width();
    const std::int64_t width = options.extent.width;
    const auto cut = [&](auto& values) {
      std::decay_t<decltype(values)> kept;
      for (std::size_t start = 0; start < values.size(); start += static_cast<std::size_t>(width)) {
        const auto from = values.begin() + static_cast<std::int64_t>(start) + first * head_width;
        kept.insert(kept.end(), from, from + count * head_width);
      }
      values = kept;
    };
    for (auto* const lists : {&part.rows, &part.partials, &part.dy, &part.combined_gradient}) {
      for (auto& values : *lists) { cut(values); }
    }
    for (site_values& site : part.sites) {
      cut(site.query);
      cut(site.norm_weight);
    }
    part.options.extent.width = count * head_width;
    part.options.extent.num_heads = count;
    part.options.extent.norm_width = width;
    return part;
  }

private:
  [[nodiscard]] sweep_results empty_results() const
  {
    const auto& extent = options.extent;
    const auto width = static_cast<std::size_t>(extent.width);
    const auto elements = static_cast<std::size_t>(extent.num_positions) * width;
    const auto heads = static_cast<std::size_t>(extent.num_positions * extent.num_heads);
    sweep_results results;
    for (int c = 0; c < num_calls(); ++c) {
      const auto call = static_cast<std::size_t>(c);
      for (const char* name : {"y", "combined", "mix"}) { results[name].emplace_back(elements); }
      results["lse"].emplace_back(heads);
      results["private_gradient"].emplace_back(private_rows[call].size());
      results["partial_gradient"].emplace_back(partials[call].size());
    }
    results["row_gradient"].assign(rows.size(), std::vector<double>(elements));
    for (const site_values& site : sites) {
      results["query"].emplace_back(site.query.size());
      results["norm_weight"].emplace_back(site.norm_weight.size());
      results["bias"].emplace_back(site.bias.size());
      results["null_source"].emplace_back(site.null_source.size());
      results["gate"].emplace_back(site.gate.size());
      results["output_weight"].emplace_back(site.output_weight.size());
    }
    return results;
  }

  void expect_call(int c, sweep_results& results) const
  {
    const auto call = static_cast<std::size_t>(c);
    const auto site = static_cast<std::size_t>(c / options.queries_per_site);
    const int query = c % options.queries_per_site;
    const std::int64_t width = options.extent.width;
    const bool has_private = options.schedule.has_private(c);
    std::vector<const T*> sources;
    std::vector<void*> gradients;
    for (int n = 0; n < rows_of(c); ++n) {
      sources.push_back(rows[static_cast<std::size_t>(n)].data());
      gradients.push_back(results["row_gradient"][static_cast<std::size_t>(n)].data());
    }
    if (has_private) {
      sources.push_back(private_rows[call].data());
      gradients.push_back(results["private_gradient"][call].data());
    }
    const auto place = [](const std::vector<real>& values) {
      return values.empty() ? nullptr : values.data();
    };
    const auto of_call = [&](const char* name) {
      return mhar::matrix{results[name][call].data(), width};
    };

    mhar::route_problem<T> forward;
    forward.extent = options.extent;
    forward.num_rows = rows_of(c) + (has_private ? 1 : 0);
    forward.rows = mhar::row_list(sources.data(), width);
    describe(sites[site], forward.site, forward.stage, place);
    forward.site.query.data = sites[site].query.data() + query * width;
    if (options.partial) { forward.stage.partial = {partials[call].data(), width}; }
    forward.outputs.y = of_call("y");
    forward.outputs.combined = of_call("combined");
    forward.outputs.mix = of_call("mix");
    std::vector<real> lse(results["lse"][call].size());
    forward.outputs.lse = lse.data();
    mhar::reference::route(forward);
    std::copy(lse.begin(), lse.end(), results["lse"][call].begin());

    mhar::route_gradient_problem<T> backward;
    backward.extent = options.extent;
    backward.num_rows = forward.num_rows;
    backward.rows = forward.rows;
    backward.site = forward.site;
    backward.stage = forward.stage;
    backward.output_gradient = {dy[call].data(), width};
    if (options.combined_gradient) {
      backward.combined_gradient = {combined_gradient[call].data(), width};
    }
    backward.row_gradients.list = gradients.data();
    backward.row_gradients.type = mhar::element::float64;
    backward.row_gradients.position_stride = width;
    backward.row_gradients.mode = mhar::update::accumulate;
    if (options.partial) { backward.partial_gradient = of_call("partial_gradient"); }
    const auto of_site = [&](const char* name) {
      std::vector<double>& values = results[name][site];
      return mhar::array{values.empty() ? nullptr : values.data(), mhar::element::float64,
                         mhar::update::accumulate};
    };
    backward.gradients = {of_site("query"),       of_site("norm_weight"), of_site("bias"),
                          of_site("null_source"), of_site("gate"),        of_site("output_weight")};
    backward.gradients.query.data = results["query"][site].data() + query * width;
    mhar::reference::route_gradient(backward);
  }
};

//! The largest distance of two results, relative to the largest element of its list (at least 1),
//! over all lists of a name.
struct sweep_distance
{
  double largest = 0;
  std::string name;
};

inline sweep_distance distance(const sweep_results& actual, const sweep_results& expected)
{
  sweep_distance worst;
  for (const auto& [name, lists] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end()) { continue; }
    double difference = 0;
    double scale = 1;
    for (std::size_t i = 0; i < lists.size(); ++i) {
      for (std::size_t j = 0; j < lists[i].size(); ++j) {
        const double wanted = lists[i][j];
        if (std::isfinite(wanted)) { scale = std::max(scale, std::abs(wanted)); }
        if (close(found->second[i][j], wanted, {})) { continue; }
        const double error = std::abs(found->second[i][j] - wanted);
        difference = std::isnan(error) ? HUGE_VAL : std::max(difference, error);
      }
    }
    if (difference / scale > worst.largest) { worst = {difference / scale, name}; }
  }
  return worst;
}

//! The norm of the difference over the norm of what was expected, of every name that is not empty.
inline std::map<std::string, double> relative_errors(const sweep_results& actual,
                                                     const sweep_results& expected)
{
  std::map<std::string, double> errors;
  for (const auto& [name, lists] : expected) {
    const auto found = actual.find(name);
    double difference = 0;
    double total = 0;
    for (std::size_t i = 0; found != actual.end() && i < lists.size(); ++i) {
      for (std::size_t j = 0; j < lists[i].size(); ++j) {
        difference += std::pow(found->second[i][j] - lists[i][j], 2);
        total += std::pow(lists[i][j], 2);
      }
    }
    if (total > 0) { errors[name] = std::sqrt(difference / total); }
  }
  return errors;
}

}  // namespace mhar_test
