// SPDX-License-Identifier: Apache-2.0
//! The merge of partial results against the call over all rows.
#include "support/call_case.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

using namespace mhar_test;

TEST_CASE("reference: partial results over disjoint rows merge to the call over all of them")
{
  random_inputs random{141};
  for (int i = 0; i < 50; ++i) {
    call_options<double> options;
    options.extent = {random.integer(1, 4), 12, static_cast<int>(random.integer(1, 3)), 0};
    options.num_rows = static_cast<int>(random.integer(1, 9));
    call_case<double> data{options, random};
    auto whole = data.forward(host_memory{});

    const std::int64_t positions = options.extent.num_positions;
    const std::int64_t elements = positions * 12;
    const std::int64_t heads = positions * options.extent.num_heads;
    std::vector<std::vector<double>> mixes;
    std::vector<double> lse;
    for (int first = 0; first < options.num_rows;) {
      const int count = static_cast<int>(random.integer(1, options.num_rows - first));
      mhar::route_problem<double> part = whole.problem;
      part.rows.base = part.rows.row(first);
      part.num_rows = count;
      mixes.emplace_back(static_cast<std::size_t>(elements));
      lse.resize(lse.size() + static_cast<std::size_t>(heads));
      part.outputs = {};
      part.outputs.mix = {mixes.back().data(), 12};
      part.outputs.lse = lse.data() + static_cast<std::ptrdiff_t>(lse.size()) - heads;
      mhar::reference::route(part);
      first += count;
    }
    // A part without a source of weight, whose mix is never written.
    mixes.emplace_back(static_cast<std::size_t>(elements), NAN);
    lse.resize(lse.size() + static_cast<std::size_t>(heads),
               -std::numeric_limits<double>::infinity());

    std::vector<const double*> parts;
    for (const auto& mix : mixes) { parts.push_back(mix.data()); }
    mhar::merge_problem<double> merge;
    merge.extent = options.extent;
    merge.num_parts = static_cast<int>(parts.size());
    merge.parts = mhar::row_list(parts.data(), 12);
    merge.part_lse = lse.data();
    merge.part_lse_stride = heads;
    merge.mix = whole.problem.outputs.mix;
    merge.lse = whole.problem.outputs.lse;
    mhar::reference::merge(merge);

    for (tensor* const other : {&data.results().y, &data.results().combined,
                                &data.results().weights, &data.results().inverse_rms}) {
      *other = {};
    }
    CHECK_PASSES(data.check_forward());
  }
}

TEST_CASE("reference: merging parts without weight gives mix 0 and lse -inf")
{
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> mixes(8, 3);
  const std::vector<double> part_lse(4, -infinity);
  std::vector<double> mix(4, NAN);
  std::vector<double> lse(2, NAN);
  mhar::merge_problem<double> merge;
  merge.extent = {1, 4, 2, 0};
  merge.num_parts = 2;
  merge.parts = mhar::source_major(mixes.data(), 1, 4);
  merge.part_lse = part_lse.data();
  merge.part_lse_stride = 2;
  merge.mix = {mix.data(), 4};
  merge.lse = lse.data();
  mhar::reference::merge(merge);
  CHECK(mix == std::vector<double>(4, 0));
  CHECK(lse == std::vector<double>(2, -infinity));
}
