// SPDX-License-Identifier: Apache-2.0
//! What a sweep of S calls reads: call c reads the rows 0..c and perhaps a private one.
#pragma once

#include "support/guarded.hpp"
#include "support/random.hpp"

#include <mhar/types/sweep.hpp>

#include <cmath>
#include <vector>

namespace mhar_test {

template <class T>
struct sweep_options
{
  mhar::shape extent{5, 24, 3, 0};
  int num_calls = 6;
  bool null_source = false;
  bool bias = false;
  bool gate = false;
  bool partial = false;
  bool private_rows = false;
  mhar::output_norm norm = mhar::output_norm::none;
  mhar::key_rounding rounding = mhar::key_rounding::none;
  mhar::element states = mhar::element_of<mhar::accumulate_t<T>>::value;
  bool token_major = false;
  bool dots_in_gather = false;  //!< D is left to gather instead of output_gradient's
};

//! Random inputs; public, because tests and the reference read them.
template <class T>
struct sweep_arrays
{
  template <class Value>
  using buffer = guarded<Value>;

  sweep_arrays(const sweep_options<T>& chosen, random_inputs& random)
      : options{chosen},
        positions{chosen.extent.num_positions},
        width{chosen.extent.width},
        heads{chosen.extent.num_heads},
        calls{chosen.num_calls}
  {
    make_inputs(random);
  }
  //! Sites point to the arrays.
  sweep_arrays(const sweep_arrays&) = delete;
  sweep_arrays& operator=(const sweep_arrays&) = delete;

  [[nodiscard]] std::int64_t matrix_size() const { return positions * width; }
  [[nodiscard]] int has_null() const { return options.null_source ? 1 : 0; }
  [[nodiscard]] int num_sources(int call) const
  {
    return call + 1 + has_null() + (options.private_rows ? 1 : 0);
  }
  [[nodiscard]] int most_sources() const { return calls + 2; }
  [[nodiscard]] mhar::const_rows<T> row_view() const
  {
    return options.token_major ? mhar::token_major(rows.data(), calls, width)
                               : mhar::source_major(rows.data(), positions, width);
  }

  void make_inputs(random_inputs& random)
  {
    random.fill(rows.data(), rows.size());
    random.fill(private_rows.data(), private_rows.size());
    random.fill(partial.data(), partial.size());
    random.fill(upstream.data(), upstream.size());
    random.fill(queries.data(), queries.size(), 2 / std::sqrt(static_cast<double>(width / heads)));
    random.fill(nulls.data(), nulls.size());
    random.fill(biases.data(), biases.size());
    // Not near 0, where an output norm would magnify every rounding.
    for (int c = 0; c < calls; ++c) { gates[c] = static_cast<float>(random.uniform(0.5, 1.5)); }
    random.fill(norm_weights.data(), norm_weights.size());
    for (int c = 0; c < calls; ++c) {
      mhar::site_parameters site;
      site.query = queries.data() + c * width;
      site.norm_weight = norm_weights.data() + c * width;
      if (options.bias) { site.bias = biases.data() + c * most_sources(); }
      if (options.null_source) { site.null_source = nulls.data() + c * width; }
      site.scale = 0.8;
      site.rounding = options.rounding;
      sites.push_back(site);
      gate_arrays.push_back(options.gate ? mhar::const_array{gates.data() + c}
                                         : mhar::const_array{});
      source_counts.push_back(num_sources(c));
    }
  }

  [[nodiscard]] mhar::output_stage stage(int call) const
  {
    mhar::output_stage stage;
    if (options.partial) { stage.partial = {partial.data() + call * matrix_size(), width}; }
    stage.gate = gate_arrays[static_cast<std::size_t>(call)];
    stage.norm = options.norm;
    if (options.norm == mhar::output_norm::rms) {
      stage.norm_weight = norm_weights.data() + call * width;
    }
    return stage;
  }

  sweep_options<T> options;
  std::int64_t positions;
  std::int64_t width;
  int heads;
  int calls;
  buffer<T> rows{calls * matrix_size()};
  buffer<T> private_rows{calls * matrix_size()};
  buffer<T> partial{calls * matrix_size()};
  buffer<T> upstream{calls * matrix_size()};
  buffer<float> queries{calls * width};
  buffer<float> norm_weights{calls * width};
  buffer<float> nulls{calls * width};
  buffer<float> biases{std::int64_t{calls} * most_sources()};
  buffer<float> gates{calls};
  std::vector<mhar::site_parameters> sites;
  std::vector<mhar::const_array> gate_arrays;
  std::vector<int> source_counts;
};

}  // namespace mhar_test
