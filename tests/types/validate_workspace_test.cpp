// SPDX-License-Identifier: Apache-2.0
//! A workspace that lies over one byte of any array of a problem is refused by that array's name.
#include <doctest/doctest.h>
#include <mhar/types/update.hpp>
#include <mhar/types/validate.hpp>

#include <deque>
#include <string>
#include <vector>

namespace {

constexpr int positions = 3;
constexpr int width = 8;
constexpr int heads = 2;
constexpr int num_rows = 4;
constexpr int num_calls = 5;
constexpr int elements = positions * width;

//! Hands out arrays of a problem and remembers what validation calls them.
class named_arrays
{
public:
  struct entry
  {
    std::string name;
    std::vector<float> values;
  };

  float* operator()(const char* name, int count)
  {
    entries_.push_back({name, std::vector<float>(static_cast<std::size_t>(count))});
    return entries_.back().values.data();
  }
  [[nodiscard]] mhar::matrix matrix(const char* name) { return {(*this)(name, elements), width}; }
  [[nodiscard]] const std::deque<entry>& entries() const noexcept { return entries_; }

private:
  std::deque<entry> entries_;
};

template <class Problem>
void check_overlaps(const Problem& problem, const named_arrays& arrays)
{
  const std::vector<char> apart(1000);
  REQUIRE(std::string{validate(problem, {apart.data(), apart.size()}).message} == "");
  for (const auto& [name, values] : arrays.entries()) {
    CAPTURE(name);
    const auto* const first = reinterpret_cast<const char*>(values.data());
    for (const char* const byte : {first, first + values.size() * sizeof(float) - 1}) {
      const mhar::status answer = validate(problem, {byte, 1});
      CHECK(answer.code == mhar::code::aliasing);
      CHECK(answer.argument == name);
      CHECK(std::string{answer.message} == "the workspace overlaps it");
    }
  }
  // As long as a caller may say that memory is.
  const auto last = reinterpret_cast<const char*>(arrays.entries().back().values.data());
  CHECK(validate(problem, {last, static_cast<std::size_t>(-1)}).code == mhar::code::aliasing);
  CHECK(validate(problem, {last, 0}).ok());
}

void give_site(mhar::site_parameters& site, mhar::output_stage& stage, named_arrays& arrays)
{
  site.query = arrays("site.query", width);
  site.norm_weight = arrays("site.norm_weight", width);
  site.bias = arrays("site.bias", num_rows + 1);
  site.null_source = arrays("site.null_source", width);
  stage.partial = arrays.matrix("stage.partial");
  stage.gate = arrays("stage.gate", 1);
  stage.norm = mhar::output_norm::rms;
  stage.norm_weight = arrays("stage.norm_weight", width);
}

mhar::route_problem<float> forward(named_arrays& arrays)
{
  mhar::route_problem<float> problem;
  problem.extent = {positions, width, heads};
  problem.num_rows = num_rows;
  problem.rows = mhar::source_major(arrays("rows", num_rows * elements), positions, width);
  give_site(problem.site, problem.stage, arrays);
  problem.outputs.y = arrays.matrix("outputs.y");
  problem.outputs.combined = arrays.matrix("outputs.combined");
  problem.outputs.mix = arrays.matrix("outputs.mix");
  problem.outputs.lse = arrays("outputs.lse", positions * heads);
  problem.outputs.inverse_rms = arrays("outputs.inverse_rms", num_rows * positions);
  problem.outputs.weights = arrays("outputs.weights", positions * heads * (num_rows + 1));
  return problem;
}

mhar::folded_sites<float> folded(named_arrays& arrays)
{
  mhar::folded_sites<float> sites;
  sites.query = arrays("sites.query", num_calls * width);
  sites.bias_stride = num_rows;
  sites.bias = arrays("sites.bias", num_calls * num_rows);
  sites.null_source = arrays("sites.null_source", num_calls * width);
  sites.null_logit = arrays("sites.null_logit", num_calls * heads);
  sites.gate = arrays("sites.gate", num_calls);
  sites.logit_gate = arrays("sites.logit_gate", num_calls);
  sites.packed = arrays("sites.packed", 1);
  return sites;
}

mhar::gradient_partials<float> partials(named_arrays& arrays)
{
  mhar::gradient_partials<float> sums;
  sums.num_chunks = 2;
  sums.num_calls = num_calls;
  sums.bias_stride = num_rows;
  sums.query = arrays("partials.query", 2 * num_calls * width);
  sums.bias = arrays("partials.bias", 2 * num_calls * (num_rows + 1));
  sums.null_source = arrays("partials.null_source", 2 * num_calls * width);
  sums.gate = arrays("partials.gate", 2 * num_calls);
  sums.output_norm = arrays("partials.output_norm", 2 * num_calls * width);
  return sums;
}

}  // namespace

TEST_CASE("validate: a workspace over an array of a call is refused by the array's name")
{
  named_arrays of_forward;
  check_overlaps(forward(of_forward), of_forward);

  named_arrays of_update;
  mhar::update_problem<float> update;
  update.call = forward(of_update);
  update.row = num_rows - 1;
  update.delta = of_update.matrix("delta");
  update.sum = of_update.matrix("sum");
  update.copy = of_update.matrix("copy");
  check_overlaps(update, of_update);

  named_arrays of_backward;
  mhar::route_gradient_problem<float> backward;
  backward.extent = {positions, width, heads};
  backward.num_rows = num_rows;
  backward.rows = mhar::source_major(of_backward("rows", num_rows * elements), positions, width);
  give_site(backward.site, backward.stage, of_backward);
  backward.output_gradient = of_backward.matrix("output_gradient");
  backward.combined_gradient = of_backward.matrix("combined_gradient");
  backward.lse = of_backward("lse", positions * heads);
  backward.inverse_rms = of_backward("inverse_rms", num_rows * positions);
  backward.mix = of_backward.matrix("mix");
  backward.combined = of_backward.matrix("combined");
  backward.row_gradients = {of_backward("row_gradients", num_rows * elements),
                            mhar::element::float32, elements, width};
  backward.partial_gradient = of_backward.matrix("partial_gradient");
  backward.gradients.query = of_backward("gradients.query", width);
  backward.gradients.norm_weight = of_backward("gradients.norm_weight", width);
  backward.gradients.bias = of_backward("gradients.bias", num_rows + 1);
  backward.gradients.null_source = of_backward("gradients.null_source", width);
  backward.gradients.gate = of_backward("gradients.gate", 1);
  backward.gradients.output_norm_weight = of_backward("gradients.output_norm_weight", width);
  check_overlaps(backward, of_backward);

  named_arrays of_merge;
  mhar::merge_problem<float> merge;
  merge.extent = {positions, width, heads};
  merge.num_parts = 2;
  merge.parts = mhar::source_major(of_merge("parts", 2 * elements), positions, width);
  merge.part_lse = of_merge("part_lse", 2 * positions * heads);
  merge.part_lse_stride = positions * heads;
  merge.mix = of_merge.matrix("mix");
  merge.lse = of_merge("lse", positions * heads);
  check_overlaps(merge, of_merge);
}

TEST_CASE("validate: a workspace over an array of a sweep's verb is refused by the array's name")
{
  named_arrays of_advance;
  mhar::advance_problem<float> advance;
  advance.extent = {positions, width, heads};
  advance.sites = folded(of_advance);
  advance.first_call = 2;
  advance.num_calls = 3;
  advance.rows = mhar::source_major(of_advance("rows", 2 * elements), positions, width);
  advance.num_rows = 2;
  advance.num_new_rows = 1;
  advance.inverse_rms = of_advance("inverse_rms", 2 * positions);
  advance.start = mhar::pass_start::kept;
  advance.states.mix = of_advance("states", 3 * elements);
  advance.states.slot_stride = elements;
  advance.states.lse = of_advance("states.lse", 3 * positions * heads);
  advance.private_row = of_advance("private_row", elements);
  advance.private_stride = width;
  advance.private_bias = 2;
  advance.private_inverse_rms = of_advance("private_inverse_rms", positions);
  advance.stage.partial = of_advance.matrix("stage.partial");
  advance.stage.gate = of_advance("stage.gate", 1);
  advance.stage.norm = mhar::output_norm::rms;
  advance.stage.norm_weight = of_advance("stage.norm_weight", width);
  advance.outputs.y = of_advance.matrix("outputs.y");
  advance.outputs.combined = of_advance.matrix("outputs.combined");
  advance.outputs.mix = of_advance.matrix("outputs.mix");
  advance.outputs.lse = of_advance("outputs.lse", positions * heads);
  check_overlaps(advance, of_advance);

  named_arrays of_output;
  mhar::output_gradient_problem<float> output;
  output.extent = {positions, width, heads};
  output.call = num_calls - 1;
  output.sites = folded(of_output);
  output.stage.norm = mhar::output_norm::rms;
  output.stage.norm_weight = of_output("stage.norm_weight", width);
  output.output_gradient = of_output.matrix("output_gradient");
  output.combined_gradient = of_output.matrix("combined_gradient");
  output.combined = of_output.matrix("combined");
  output.mix = of_output.matrix("mix");
  output.lse = of_output("lse", positions * heads);
  output.call_gradient = of_output.matrix("call_gradient");
  output.partial_gradient = of_output.matrix("partial_gradient");
  output.dot = of_output("dot", positions * heads);
  output.partials = partials(of_output);
  check_overlaps(output, of_output);

  named_arrays of_gather;
  mhar::gather_problem<float> gather;
  gather.extent = {positions, width, heads};
  gather.sites = folded(of_gather);
  gather.rows = mhar::source_major(of_gather("rows", num_rows * elements), positions, width);
  gather.inverse_rms = of_gather("inverse_rms", num_rows * positions);
  gather.top_row = num_rows - 1;
  gather.num_rows = num_rows;
  gather.call_gradients =
      mhar::source_major(of_gather("call_gradients", num_calls * elements), positions, width);
  gather.num_calls = num_calls;
  gather.num_new_calls = num_calls;
  gather.mixes = mhar::source_major(of_gather("mixes", num_calls * elements), positions, width);
  gather.lse = of_gather("lse", num_calls * positions * heads);
  gather.dot = of_gather("dot", num_calls * positions * heads);
  gather.start = mhar::pass_start::kept;
  gather.states.gradient = of_gather("states", num_rows * elements);
  gather.states.slot_stride = elements;
  gather.states.head_sum = of_gather("states.head_sum", num_rows * positions);
  gather.row_gradient = of_gather.matrix("row_gradient");
  gather.partials = partials(of_gather);
  check_overlaps(gather, of_gather);
}
