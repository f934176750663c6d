// SPDX-License-Identifier: Apache-2.0
//! Every bad argument of a sweep's verb is refused by name.
#include <doctest/doctest.h>
#include <mhar/types/validate.hpp>
#include <support/refusals.hpp>

#include <limits>
#include <string>
#include <vector>

namespace {

using mhar::code;
using mhar_test::expect_refusals;

constexpr int positions = 3;
constexpr int width = 8;
constexpr int num_rows = 5;
constexpr int num_calls = 5;
constexpr int largest_int = std::numeric_limits<int>::max();

//! Valid verbs over memory of their own.
struct memory
{
  std::vector<float> rows = std::vector<float>(num_rows * positions * width);
  std::vector<float> gradients = std::vector<float>(num_calls * positions * width);
  std::vector<float> states = std::vector<float>(num_calls * positions * width);
  std::vector<float> outputs = std::vector<float>(4 * positions * width);
  std::vector<float> parameters = std::vector<float>(16 * num_calls * width);
  std::vector<float> sums = std::vector<float>(8 * num_calls * positions * width);
  std::vector<mhar::site_parameters> sites = std::vector<mhar::site_parameters>(num_calls);
  std::vector<mhar::site_gradients> wanted = std::vector<mhar::site_gradients>(num_calls);
  std::vector<int> num_sources = {2, 3, 4, 5, 6};

  float* parameter(int index) { return parameters.data() + index * num_calls * width; }
  float* sum(int index) { return sums.data() + index * num_calls * positions * width; }
  float* output(int index) { return outputs.data() + index * positions * width; }

  mhar::folded_sites<float> folded()
  {
    mhar::folded_sites<float> result;
    result.query = parameter(0);
    result.bias = parameter(1);
    result.bias_stride = num_rows;
    result.null_source = parameter(2);
    result.null_logit = parameter(3);
    result.gate = parameter(4);
    result.logit_gate = parameter(5);
    return result;
  }

  mhar::gradient_partials<float> partials()
  {
    mhar::gradient_partials<float> result;
    result.query = parameter(8);
    result.num_chunks = 1;
    result.num_calls = num_calls;
    return result;
  }

  mhar::fold_problem<float> fold()
  {
    for (mhar::site_parameters& site : sites) {
      site.query = parameter(6);
      site.null_source = parameter(7);
    }
    mhar::fold_problem<float> problem;
    problem.extent = {positions, width, 2};
    problem.num_calls = num_calls;
    problem.sites = sites.data();
    problem.num_sources = num_sources.data();
    problem.num_rows = num_rows;
    problem.folded = folded();
    return problem;
  }

  mhar::advance_problem<float> advance()
  {
    mhar::advance_problem<float> problem;
    problem.extent = {positions, width, 2};
    problem.sites = folded();
    problem.first_call = 1;
    problem.num_calls = 3;
    problem.rows = mhar::source_major(rows.data(), positions, width);
    problem.num_rows = 2;
    problem.num_new_rows = 1;
    problem.inverse_rms = sum(0);
    problem.states = {states.data(), mhar::element::float32, positions * width, sum(1), -1};
    problem.outputs.y = {output(0), width};
    return problem;
  }

  mhar::output_gradient_problem<float> output_gradient()
  {
    mhar::output_gradient_problem<float> problem;
    problem.extent = {positions, width, 2};
    problem.call = 2;
    problem.sites = folded();
    problem.stage.norm = mhar::output_norm::rms;
    problem.output_gradient = {output(0), width};
    problem.combined = {output(1), width};
    problem.mix = {output(2), width};
    problem.lse = sum(0);
    problem.call_gradient = {output(3), width};
    problem.dot = sum(1);
    problem.partials = partials();
    return problem;
  }

  mhar::gather_problem<float> gather()
  {
    mhar::gather_problem<float> problem;
    problem.extent = {positions, width, 2};
    problem.sites = folded();
    problem.rows = mhar::source_major(rows.data(), positions, width);
    problem.inverse_rms = sum(0);
    problem.top_row = 3;
    problem.num_rows = 2;
    problem.call_gradients = mhar::source_major(gradients.data(), positions, width);
    problem.first_call = 3;
    problem.num_calls = 2;
    problem.lse = sum(1);
    problem.dot = sum(2);
    problem.states = {states.data(), mhar::element::float32, positions * width, sum(3), -1};
    problem.row_gradient = {output(0), width};
    problem.partials = partials();
    return problem;
  }

  mhar::reduce_problem<float> reduce()
  {
    for (mhar::site_parameters& site : sites) { site.query = parameter(6); }
    for (int i = 0; i < num_calls; ++i) {
      wanted[static_cast<std::size_t>(i)].query = parameter(9 + i);
    }
    mhar::reduce_problem<float> problem;
    problem.extent = {positions, width, 2};
    problem.num_sites = num_calls;
    problem.sites = sites.data();
    problem.gradients = wanted.data();
    problem.partials = partials();
    return problem;
  }
};

}  // namespace

TEST_CASE("validate: fold refuses calls that cannot share a sweep")
{
  using problem = mhar::fold_problem<float>;
  expect_refusals<problem, memory>(
      &memory::fold,
      {
          {code::bad_shape, "num_calls", [](problem& p, memory&) { p.num_calls = 0; }},
          {code::missing_argument, "sites", [](problem& p, memory&) { p.sites = nullptr; }},
          {code::missing_argument, "folded.gate",
           [](problem& p, memory&) { p.folded.gate = nullptr; }},
          {code::missing_argument, "folded.null_logit",
           [](problem& p, memory&) { p.folded.null_logit = nullptr; }},
          {code::unsupported, "folded.null_source",
           [](problem& p, memory&) { p.extent.norm_width = 2 * width; }},
          {code::bad_shape, "num_sources", [](problem&, memory& m) { m.num_sources[2] = 0; }},
          {code::bad_value, "sites.eps", [](problem&, memory& m) { m.sites[3].eps = 1e-5; }},
          {code::bad_value, "sites.null_source",
           [](problem&, memory& m) { m.sites[4].null_source = {}; }},
          {code::bad_value, "sites.rounding",
           [](problem&, memory& m) { m.sites[1].rounding = mhar::key_rounding::storage; }},
          {code::unsupported, "folded.rounding",
           [](problem& p, memory&) { p.folded.rounding = mhar::key_rounding::storage_twice; }},
          {code::bad_shape, "num_rows",
           [](problem& p, memory& m) {
             m.sites[4].bias = m.parameter(8);
             p.num_rows = 4;
           }},
          {code::bad_value, "gates",
           [](problem& p, memory& m) {
             static mhar::const_array gates[num_calls];
             gates[3] = {m.parameter(9), static_cast<mhar::element>(9)};
             p.gates = gates;
           }},
          {code::bad_stride, "folded.bias_stride",
           [](problem& p, memory&) { p.folded.bias_stride = 1; }},
          {code::aliasing, "folded.query",
           [](problem& p, memory& m) { p.folded.query = m.parameter(6) - width; }},
          {code::aliasing, "folded.null_source",
           [](problem& p, memory&) { p.folded.null_source = p.folded.query; }},
          {code::aliasing, "folded.logit_gate",
           [](problem& p, memory&) { p.folded.logit_gate = p.folded.gate + num_calls - 1; }},
          {code::aliasing, "folded.gate",
           [](problem& p, memory&) {
             static mhar::const_array gates[num_calls];
             gates[4] = p.folded.gate;
             p.gates = gates;
           }},
      });
}

TEST_CASE("validate: advance refuses passes that miss a buffer or a source")
{
  using problem = mhar::advance_problem<float>;
  expect_refusals<problem, memory>(
      &memory::advance,
      {
          {code::bad_value, "eps", [](problem& p, memory&) { p.eps = 0; }},
          {code::bad_shape, "num_calls", [](problem& p, memory&) { p.num_calls = 0; }},
          {code::bad_shape, "first_call", [](problem& p, memory&) { p.first_call = -1; }},
          {code::bad_shape, "first_row", [](problem& p, memory&) { p.first_row = -1; }},
          {code::bad_shape, "num_rows", [](problem& p, memory&) { p.first_row = largest_int; }},
          {code::bad_shape, "num_calls", [](problem& p, memory&) { p.first_call = largest_int; }},
          {code::bad_shape, "sites.bias_stride", [](problem& p, memory&) { p.first_row = 4; }},
          {code::bad_stride, "sites.bias_stride",
           [](problem& p, memory&) { p.sites.bias_stride = -1; }},
          {code::bad_shape, "private_bias",
           [](problem& p, memory& m) {
             p.private_row = m.gradients.data();
             p.private_stride = width;
             p.private_inverse_rms = m.sum(5);
             p.private_bias = num_rows;
           }},
          {code::bad_stride, "states.slot_stride",
           [](problem& p, memory&) { p.states.slot_stride = std::int64_t{1} << 62; }},
          {code::bad_shape, "num_new_rows", [](problem& p, memory&) { p.num_new_rows = 3; }},
          {code::missing_argument, "rows", [](problem& p, memory&) { p.rows.base = nullptr; }},
          {code::missing_argument, "inverse_rms",
           [](problem& p, memory&) { p.inverse_rms = nullptr; }},
          {code::missing_argument, "states", [](problem& p, memory&) { p.states.mix = nullptr; }},
          {code::missing_argument, "states", [](problem& p, memory&) { p.states.lse = nullptr; }},
          {code::bad_value, "states.type",
           [](problem& p, memory&) { p.states.type = mhar::element::float16; }},
          {code::bad_shape, "states.first_slot",
           [](problem& p, memory&) { p.start = mhar::pass_start::kept; }},
          {code::bad_shape, "states.first_slot",
           [](problem& p, memory&) { p.states.first_slot = largest_int; }},
          {code::bad_stride, "states.slot_stride",
           [](problem& p, memory&) { p.states.slot_stride = width; }},
          {code::bad_shape, "num_rows",
           [](problem& p, memory&) {
             p.num_rows = 0;
             p.num_new_rows = 0;
             p.sites.null_source = nullptr;
             p.sites.null_logit = nullptr;
           }},
          {code::missing_argument, "private_inverse_rms",
           [](problem& p, memory& m) {
             p.private_row = m.gradients.data();
             p.private_stride = width;
           }},
          {code::unsupported, "outputs.weights",
           [](problem& p, memory& m) { p.outputs.weights = m.sum(5); }},
          {code::unsupported, "num_new_rows",
           [](problem& p, memory&) { p.extent.norm_width = 2 * width; }},
          {code::unsupported, "private_row",
           [](problem& p, memory& m) {
             p.extent.norm_width = 2 * width;
             p.num_new_rows = 0;
             p.private_row = m.gradients.data();
             p.private_stride = width;
             p.private_inverse_rms = m.sum(5);
           }},
          {code::aliasing, "outputs.y",
           [](problem& p, memory& m) { p.outputs.y.data = m.rows.data(); }},
          {code::aliasing, "outputs.y",
           [](problem& p, memory&) { p.outputs.y.data = p.sites.query; }},
          {code::aliasing, "states", [](problem& p, memory& m) { p.states.mix = m.rows.data(); }},
          {code::aliasing, "states",
           [](problem& p, memory& m) { p.outputs.y.data = m.states.data() + 7; }},
          {code::aliasing, "states.lse",
           [](problem& p, memory&) { p.states.lse = p.sites.null_logit; }},
          {code::aliasing, "states.lse", [](problem& p, memory& m) { p.states.lse = m.output(0); }},
          {code::aliasing, "inverse_rms",
           [](problem& p, memory&) { p.inverse_rms = p.states.lse + 6; }},
          {code::aliasing, "inverse_rms",
           [](problem& p, memory& m) { p.inverse_rms = m.rows.data() + 1; }},
          {code::aliasing, "outputs.mix",  // the first call's own slot, but not exactly
           [](problem& p, memory& m) {
             p.states.first_slot = 0;
             p.start = mhar::pass_start::kept;
             p.outputs.mix = {m.states.data() + 1, width};
           }},
      });
}

TEST_CASE("validate: a finished call's mix may be its own slot, and nobody else's")
{
  memory buffers;
  mhar::advance_problem<float> problem = buffers.advance();
  problem.start = mhar::pass_start::kept;
  problem.states.first_slot = 0;
  problem.outputs.mix = {buffers.states.data(), width};
  CHECK(validate(problem).ok());
  problem.outputs.mix = {buffers.states.data() + positions * width, width};
  CHECK(std::string{validate(problem).argument} == "states");
}

TEST_CASE("validate: output_gradient refuses a missing or overlapping tensor")
{
  using problem = mhar::output_gradient_problem<float>;
  expect_refusals<problem, memory>(
      &memory::output_gradient,
      {
          {code::missing_argument, "output_gradient",
           [](problem& p, memory&) { p.output_gradient = {}; }},
          {code::missing_argument, "combined", [](problem& p, memory&) { p.combined = {}; }},
          {code::missing_argument, "mix", [](problem& p, memory&) { p.mix = {}; }},
          {code::missing_argument, "lse", [](problem& p, memory&) { p.lse = nullptr; }},
          {code::missing_argument, "dot", [](problem& p, memory&) { p.dot = nullptr; }},
          {code::unsupported, "sites.null_source",
           [](problem& p, memory&) {
             p.extent.norm_width = 2 * width;
             p.stage.norm = mhar::output_norm::none;
             p.stage.norm_weight = {};
           }},
          {code::bad_value, "call_gradient",
           [](problem& p, memory&) { p.call_gradient.type = mhar::element::float64; }},
          {code::aliasing, "call_gradient",
           [](problem& p, memory& m) { p.call_gradient.data = m.output(2); }},
          {code::aliasing, "dot", [](problem& p, memory&) { p.dot = p.sites.logit_gate; }},
          {code::aliasing, "dot", [](problem& p, memory& m) { p.dot = m.sum(0) + 5; }},
          {code::aliasing, "partials.query",
           [](problem& p, memory&) { p.partials.query = p.sites.query + 1; }},
          {code::aliasing, "partials.gate",
           [](problem& p, memory&) { p.partials.gate = p.dot + 1; }},
          {code::bad_shape, "partials.num_calls",
           [](problem& p, memory&) { p.partials.num_calls = 2; }},
      });
  memory buffers;
  mhar::output_gradient_problem<float> in_place = buffers.output_gradient();
  in_place.call_gradient.data = buffers.output(0);
  CHECK(validate(in_place).ok());
}

TEST_CASE("validate: gather refuses passes outside the sweep and outputs over live inputs")
{
  using problem = mhar::gather_problem<float>;
  expect_refusals<problem, memory>(
      &memory::gather,
      {
          {code::bad_shape, "num_rows", [](problem& p, memory&) { p.num_rows = 5; }},
          {code::bad_shape, "num_rows", [](problem& p, memory&) { p.num_rows = largest_int; }},
          {code::bad_shape, "top_row", [](problem& p, memory&) { p.top_row = largest_int; }},
          {code::bad_shape, "num_calls", [](problem& p, memory&) { p.num_calls = -1; }},
          {code::bad_shape, "num_calls", [](problem& p, memory&) { p.num_calls = largest_int; }},
          {code::bad_shape, "first_call", [](problem& p, memory&) { p.first_call = -1; }},
          {code::bad_shape, "bias_entry", [](problem& p, memory&) { p.bias_entry = 2; }},
          {code::bad_shape, "bias_entry",
           [](problem& p, memory&) {
             p.sites.bias = p.partials.bias = nullptr;
             p.bias_entry = largest_int;
           }},
          {code::unsupported, "end", [](problem& p, memory&) { p.extent.norm_width = 2 * width; }},
          {code::bad_shape, "bias_entry", [](problem& p, memory&) { p.bias_entry = -3; }},
          {code::bad_shape, "bias_entry",
           [](problem& p, memory& m) {
             p.partials.bias = m.parameter(9);
             p.partials.bias_stride = 3;
           }},
          {code::missing_argument, "rows", [](problem& p, memory&) { p.rows.base = nullptr; }},
          {code::missing_argument, "call_gradients",
           [](problem& p, memory&) { p.call_gradients.base = nullptr; }},
          {code::missing_argument, "mixes", [](problem& p, memory&) { p.num_new_calls = 1; }},
          {code::missing_argument, "lse", [](problem& p, memory&) { p.lse = nullptr; }},
          {code::missing_argument, "dot", [](problem& p, memory&) { p.dot = nullptr; }},
          {code::missing_argument, "inverse_rms",
           [](problem& p, memory&) { p.inverse_rms = nullptr; }},
          {code::bad_shape, "partials.num_calls",
           [](problem& p, memory&) { p.partials.num_calls = 4; }},
          {code::aliasing, "row_gradient",
           [](problem& p, memory& m) {
             p.row_gradient.data = m.rows.data() + 3 * positions * width;
           }},
          {code::aliasing, "row_gradient",
           [](problem& p, memory& m) {
             p.row_gradient.data = m.gradients.data() + 4 * positions * width;
           }},
          {code::aliasing, "row_gradient",
           [](problem& p, memory& m) { p.row_gradient.data = m.states.data(); }},
          {code::aliasing, "states",
           [](problem& p, memory& m) {
             p.states.gradient = m.rows.data() + 2 * positions * width;
           }},
          {code::aliasing, "states.head_sum",
           [](problem& p, memory& m) { p.states.head_sum = m.sum(1); }},
          {code::aliasing, "partials.query",
           [](problem& p, memory& m) { p.partials.query = m.states.data() - width; }},
          {code::aliasing, "partials.bias",
           [](problem& p, memory& m) {
             p.partials.bias = m.sum(0) + 3;
             p.partials.bias_stride = num_rows;
           }},
          {code::aliasing, "dot",
           [](problem& p, memory& m) {
             p.num_new_calls = 1;
             p.mixes = p.call_gradients;
             p.dot = m.sum(1) + 1;
           }},
      });
}

TEST_CASE("validate: reduce refuses gradients whose partial sums are missing")
{
  using problem = mhar::reduce_problem<float>;
  expect_refusals<problem, memory>(
      &memory::reduce,
      {
          {code::bad_shape, "num_sites", [](problem& p, memory&) { p.num_sites = 0; }},
          {code::bad_shape, "queries_per_site",
           [](problem& p, memory&) { p.queries_per_site = 0; }},
          {code::bad_shape, "partials.num_calls",
           [](problem& p, memory&) { p.partials.num_calls = 4; }},
          {code::missing_argument, "partials.query",
           [](problem& p, memory&) { p.partials.query = nullptr; }},
          {code::missing_argument, "partials.gate",
           [](problem&, memory& m) { m.wanted[1].gate = m.output(0); }},
          {code::missing_argument, "partials.bias",
           [](problem&, memory& m) { m.wanted[1].bias = m.output(0); }},
          {code::bad_shape, "num_bias",
           [](problem& p, memory& m) {  // a sixth entry would be the null source's
             static constexpr int num_bias[num_calls] = {1, num_rows + 1, 1, 1, 1};
             m.wanted[1].bias = m.output(0);
             p.num_bias = num_bias;
             p.partials.bias = m.parameter(1);
             p.partials.bias_stride = num_rows;
           }},
          {code::aliasing, "gradients.query",
           [](problem&, memory& m) { m.wanted[2].query.data = m.parameter(6); }},
          {code::aliasing, "gradients",  // tied queries: their gradients are wanted apart
           [](problem&, memory& m) { m.wanted[2].query = m.wanted[0].query; }},
          {code::aliasing, "gradients",  // one kind over another kind of another site
           [](problem& p, memory& m) {
             p.partials.gate = m.sum(0);
             m.wanted[3].gate = m.parameter(9) + 1;
           }},
          {code::aliasing, "gradients",
           [](problem&, memory& m) {
             m.sites[4].query = m.parameter(9) + 4;
             m.wanted[0].query.data = m.parameter(9);
             m.wanted[3].query.data = m.output(0);
           }},
          {code::aliasing, "gradients",
           [](problem&, memory& m) { m.wanted[1].query.data = m.parameter(8) + 8; }},
      });
}
