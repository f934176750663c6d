// SPDX-License-Identifier: Apache-2.0
//! Every bad argument of a single call is refused by name, and every legal overlap and empty shape is accepted.
#include <doctest/doctest.h>
#include <mhar/types/validate.hpp>
#include <support/refusals.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

using mhar::code;
using mhar_test::expect_refusals;

constexpr int positions = 3;
constexpr int width = 8;
constexpr int num_rows = 4;

//! A valid call with every option, on memory of its own.
struct memory
{
  std::vector<float> rows = std::vector<float>(num_rows * positions * width);
  std::vector<float> parameters = std::vector<float>(16 * width);
  std::vector<float> matrices = std::vector<float>(8 * positions * width);
  std::vector<float> sums = std::vector<float>(8 * positions * width);
  std::vector<float> row_gradients = std::vector<float>(num_rows * positions * width);

  float* parameter(int index) { return parameters.data() + index * width; }
  float* matrix(int index) { return matrices.data() + index * positions * width; }
  float* sum(int index) { return sums.data() + index * positions * width; }

  mhar::site_parameters site()
  {
    mhar::site_parameters result;
    result.query = parameter(0);
    result.norm_weight = parameter(1);
    result.bias = parameter(2);
    result.null_source = parameter(3);
    return result;
  }

  mhar::output_stage stage()
  {
    mhar::output_stage result;
    result.partial = {matrix(0), width};
    result.gate = parameter(4);
    result.norm = mhar::output_norm::rms;
    result.norm_weight = parameter(5);
    return result;
  }

  mhar::route_problem<float> forward()
  {
    mhar::route_problem<float> problem;
    problem.extent = {positions, width, 2};
    problem.num_rows = num_rows;
    problem.rows = mhar::source_major(rows.data(), positions, width);
    problem.site = site();
    problem.stage = stage();
    problem.outputs.y = {matrix(1), width};
    problem.outputs.combined = {matrix(2), width};
    problem.outputs.mix = {matrix(3), width};
    problem.outputs.lse = sum(0);
    problem.outputs.inverse_rms = sum(1);
    problem.outputs.weights = sum(2);
    return problem;
  }

  mhar::route_gradient_problem<float> backward()
  {
    mhar::route_gradient_problem<float> problem;
    problem.extent = {positions, width, 2};
    problem.num_rows = num_rows;
    problem.rows = mhar::source_major(rows.data(), positions, width);
    problem.site = site();
    problem.stage = stage();
    problem.output_gradient = {matrix(1), width};
    problem.combined_gradient = {matrix(2), width};
    problem.mix = {matrix(3), width};
    problem.combined = {matrix(4), width};
    problem.lse = sum(0);
    problem.inverse_rms = sum(1);
    problem.row_gradients = {row_gradients.data(), mhar::element::float32, positions * width,
                             width};
    problem.partial_gradient = {matrix(5), width};
    problem.gradients.query = parameter(6);
    problem.gradients.norm_weight = parameter(7);
    problem.gradients.bias = parameter(8);
    problem.gradients.null_source = parameter(9);
    problem.gradients.gate = parameter(10);
    problem.gradients.output_norm_weight = parameter(11);
    return problem;
  }
};

//! A pointer that is not a multiple of four bytes.
float* shifted(float* pointer)
{
  return reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(pointer) + 2);
}

const double nan_value = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("validate: a forward call with one bad argument is refused by name")
{
  using problem = mhar::route_problem<float>;
  expect_refusals<problem, memory>(
      &memory::forward,
      {
          {code::bad_shape, "extent.num_positions",
           [](problem& p, memory&) { p.extent.num_positions = -1; }},
          {code::bad_shape, "extent.num_positions",
           [](problem& p, memory&) { p.extent.num_positions = (std::int64_t{1} << 40) + 1; }},
          {code::bad_shape, "extent.num_positions",
           [](problem& p, memory&) {
             p.extent = {std::int64_t{1} << 40, std::int64_t{1} << 20, 2, 0};
           }},
          {code::bad_shape, "extent.width", [](problem& p, memory&) { p.extent.width = 0; }},
          {code::bad_shape, "extent.num_heads",
           [](problem& p, memory&) { p.extent.num_heads = 0; }},
          {code::bad_shape, "extent.num_heads",
           [](problem& p, memory&) { p.extent.num_heads = 3; }},
          {code::unsupported, "extent.norm_width",
           [](problem& p, memory&) { p.extent.norm_width = 16; }},
          {code::bad_shape, "num_rows", [](problem& p, memory&) { p.num_rows = -1; }},
          {code::bad_shape, "num_rows",
           [](problem& p, memory&) {
             p.num_rows = std::numeric_limits<int>::max();
             p.rows.row_stride = 0;
             p.site.bias = {};
             p.outputs.inverse_rms = nullptr;
           }},
          {code::bad_shape, "num_rows",
           [](problem& p, memory&) {
             p.num_rows = 0;
             p.site.null_source = {};
           }},
          {code::missing_argument, "rows", [](problem& p, memory&) { p.rows.base = nullptr; }},
          {code::bad_stride, "rows", [](problem& p, memory&) { p.rows.row_stride = -1; }},
          {code::bad_stride, "rows",
           [](problem& p, memory&) {
             p.rows.row_stride = std::numeric_limits<std::int64_t>::min();
           }},
          {code::bad_stride, "rows", [](problem& p, memory&) { p.rows.position_stride = -8; }},
          {code::bad_stride, "rows",
           [](problem& p, memory&) {
             p.rows.row_stride = std::numeric_limits<std::int64_t>::max();
           }},
          {code::bad_alignment, "rows",
           [](problem& p, memory& m) { p.rows.base = shifted(m.rows.data()); }},
          {code::missing_argument, "site.query", [](problem& p, memory&) { p.site.query = {}; }},
          {code::bad_alignment, "site.query",
           [](problem& p, memory& m) { p.site.query = shifted(m.parameter(0)); }},
          {code::bad_value, "site.norm_weight",
           [](problem& p, memory&) { p.site.norm_weight.type = static_cast<mhar::element>(9); }},
          {code::bad_value, "site.scale", [](problem& p, memory&) { p.site.scale = nan_value; }},
          {code::bad_value, "site.scale", [](problem& p, memory&) { p.site.scale = -1e39; }},
          {code::bad_value, "site.eps", [](problem& p, memory&) { p.site.eps = 0; }},
          {code::bad_value, "site.eps", [](problem& p, memory&) { p.site.eps = -1e-6; }},
          {code::bad_value, "site.eps", [](problem& p, memory&) { p.site.eps = 1e-50; }},
          {code::bad_value, "site.eps", [](problem& p, memory&) { p.site.eps = nan_value; }},
          {code::bad_value, "site.rounding",
           [](problem& p, memory&) { p.site.rounding = static_cast<mhar::key_rounding>(7); }},
          {code::bad_value, "stage.norm",
           [](problem& p, memory&) { p.stage.norm = static_cast<mhar::output_norm>(7); }},
          {code::bad_value, "stage.norm_weight",
           [](problem& p, memory&) { p.stage.norm = mhar::output_norm::none; }},
          {code::bad_value, "stage.norm_eps", [](problem& p, memory&) { p.stage.norm_eps = 0; }},
          {code::bad_stride, "stage.partial",
           [](problem& p, memory&) { p.stage.partial.position_stride = -1; }},
          {code::bad_value, "outputs.y",
           [](problem& p, memory&) { p.outputs.y.mode = mhar::update::accumulate; }},
          {code::bad_stride, "outputs.y",
           [](problem& p, memory&) { p.outputs.y.position_stride = width - 1; }},
          {code::bad_stride, "outputs.y",
           [](problem& p,
              memory&) {  // together they leave 64 bits, and come back as a small number
             p.extent.num_positions = (std::int64_t{1} << 30) + 2;
             p.outputs.y.position_stride = std::int64_t{1} << 40;
           }},
          {code::missing_argument, "outputs.y", [](problem& p, memory&) { p.outputs = {}; }},
          {code::aliasing, "outputs.y",
           [](problem& p, memory& m) { p.outputs.y.data = m.rows.data() + 5; }},
          {code::aliasing, "outputs.y",
           [](problem& p, memory& m) { p.outputs.y.data = m.matrix(0) + 1; }},
          {code::aliasing, "outputs.combined",
           [](problem& p, memory& m) { p.outputs.combined.data = m.matrix(1); }},
          {code::aliasing, "outputs.lse",
           [](problem& p, memory& m) { p.outputs.lse = m.parameter(0); }},
          {code::aliasing, "outputs.weights",
           [](problem& p, memory&) { p.outputs.weights = p.outputs.lse + 1; }},
      });
}

TEST_CASE("validate: a backward call with one bad argument is refused by name")
{
  using problem = mhar::route_gradient_problem<float>;
  expect_refusals<problem, memory>(
      &memory::backward,
      {
          {code::bad_shape, "extent.num_heads",
           [](problem& p, memory&) { p.extent.num_heads = 5; }},
          {code::missing_argument, "output_gradient",
           [](problem& p, memory&) { p.output_gradient = {}; }},
          {code::bad_stride, "output_gradient",
           [](problem& p, memory&) { p.output_gradient.position_stride = -1; }},
          {code::missing_argument, "site.norm_weight",
           [](problem& p, memory&) { p.site.norm_weight = {}; }},
          {code::missing_argument, "site.bias", [](problem& p, memory&) { p.site.bias = {}; }},
          {code::missing_argument, "site.null_source",
           [](problem& p, memory&) { p.site.null_source = {}; }},
          {code::missing_argument, "stage.gate", [](problem& p, memory&) { p.stage.gate = {}; }},
          {code::missing_argument, "stage.norm_weight",
           [](problem& p, memory&) { p.stage.norm_weight = {}; }},
          {code::aliasing, "partial_gradient",
           [](problem& p, memory& m) { p.partial_gradient.data = m.matrix(1); }},
          {code::aliasing, "gradients.norm_weight",
           [](problem& p, memory& m) { p.gradients.norm_weight.data = m.parameter(6); }},
          {code::aliasing, "row_gradients",
           [](problem& p, memory& m) { p.row_gradients.base = m.rows.data(); }},
          {code::aliasing, "row_gradients",
           [](problem& p, memory&) { p.row_gradients.row_stride = width; }},
          {code::bad_stride, "row_gradients",
           [](problem& p, memory&) { p.row_gradients.position_stride = width - 1; }},
          {code::bad_value, "row_gradients",
           [](problem& p, memory&) { p.row_gradients.mode = static_cast<mhar::update>(5); }},
          {code::bad_alignment, "gradients.query",
           [](problem& p, memory& m) { p.gradients.query.data = shifted(m.parameter(6)); }},
      });
}

TEST_CASE("validate: row gradients listed twice overlap, a null entry is merely not wanted")
{
  memory buffers;
  mhar::route_gradient_problem<float> problem = buffers.backward();
  float* const base = buffers.row_gradients.data();
  void* list[num_rows] = {base, nullptr, base + positions * width, base + 2 * positions * width};
  problem.row_gradients = {nullptr, mhar::element::float32, 0, width, list};
  CHECK(validate(problem).ok());
  list[3] = base;
  CHECK(validate(problem).code == code::aliasing);
}

TEST_CASE("validate: row gradients in any layout and number are told from ones that overlap")
{
  for (const int count : {2, 193, 1500}) {
    const std::int64_t each = positions * width;
    const auto size = static_cast<std::size_t>(count * each);
    std::vector<float> rows(size);
    std::vector<float> gradients(2 * size);
    std::vector<float> upstream(positions * width);
    std::vector<void*> list(static_cast<std::size_t>(count));
    memory buffers;
    mhar::route_gradient_problem<float> problem;
    problem.extent = {positions, width, 2};
    problem.num_rows = count;
    problem.rows = mhar::source_major(rows.data(), positions, width);
    problem.site.query = buffers.parameter(0);
    problem.output_gradient = {upstream.data(), width};
    const auto outcome = [&](std::int64_t step, std::int64_t position_stride, const float* start) {
      for (std::int64_t n = 0; n < count; ++n) {  // the last one first
        list[static_cast<std::size_t>(count - 1 - n)] = const_cast<float*>(start) + n * step;
      }
      problem.row_gradients = {nullptr, mhar::element::float32, 0, position_stride, list.data()};
      return validate(problem);
    };
    const auto overlaps = [](const mhar::status& answer) {
      return answer.code == code::aliasing && std::string{answer.argument} == "row_gradients";
    };
    const std::int64_t wide = count * width;  // the positions of token-major rows
    CHECK(outcome(each, width, gradients.data()).ok());
    CHECK(overlaps(outcome(each - 1, width, gradients.data())));
    CHECK(outcome(width, wide, gradients.data()).ok());
    CHECK(overlaps(outcome(width - 1, wide, gradients.data())));
    CHECK(overlaps(outcome(width, wide - 1, gradients.data())));
    // Rows that take turns with others in one wider matrix, plain neither as a sequence nor side by side.
    CHECK(outcome(2 * width, 2 * wide, gradients.data()).ok());
    list[0] = static_cast<float*>(list[1]) + width;
    CHECK(validate(problem).ok());
    list[0] = static_cast<float*>(list[1]) + width - 1;
    CHECK(overlaps(validate(problem)));
    // Against the rows.
    CHECK(overlaps(outcome(each, width, rows.data())));
    CHECK(overlaps(outcome(0, width, rows.data())));
    problem.rows = {gradients.data() + width, 2 * width, 2 * wide, nullptr};
    CHECK(outcome(2 * width, 2 * wide, gradients.data()).ok());
    CHECK(overlaps(outcome(2 * width, 2 * wide, gradients.data() + 1)));
  }
}

TEST_CASE("validate: y may be the partial exactly, and columns of one wider matrix do not overlap")
{
  memory buffers;
  mhar::route_problem<float> problem = buffers.forward();
  problem.outputs.y = {buffers.matrix(0), width};
  CHECK(validate(problem).ok());

  std::vector<float> wide(positions * 3 * width);
  problem.stage.partial = {wide.data(), 3 * width};
  problem.outputs.y = {wide.data() + width, 3 * width};
  problem.outputs.combined = {wide.data() + 2 * width, 3 * width};
  CHECK(validate(problem).ok());
  problem.outputs.y = {wide.data() + width - 1, 3 * width};
  CHECK(validate(problem).code == code::aliasing);
}

TEST_CASE("validate: all three layouts of rows are accepted, and token-major row gradients")
{
  memory buffers;
  mhar::route_problem<float> forward = buffers.forward();
  forward.rows = mhar::token_major(buffers.rows.data(), num_rows, width);
  CHECK(validate(forward).ok());
  const float* list[num_rows];
  for (int n = 0; n < num_rows; ++n) { list[n] = buffers.rows.data() + n * positions * width; }
  forward.rows = mhar::row_list(list, width);
  CHECK(validate(forward).ok());
  list[2] = nullptr;
  CHECK(std::string{validate(forward).argument} == "rows");

  mhar::route_gradient_problem<float> backward = buffers.backward();
  backward.row_gradients = {buffers.row_gradients.data(), mhar::element::float32, width,
                            num_rows * width};
  CHECK(validate(backward).ok());
}

TEST_CASE("validate: an empty call needs no tensors")
{
  memory buffers;
  mhar::route_problem<float> forward = buffers.forward();
  forward.extent.num_positions = 0;
  forward.rows = {};
  forward.stage.partial = {};
  forward.outputs = {};
  CHECK(validate(forward).ok());

  mhar::route_gradient_problem<float> backward = buffers.backward();
  backward.extent.num_positions = 0;
  backward.rows = {};
  backward.output_gradient = {};
  backward.row_gradients = {};
  CHECK(validate(backward).ok());
}

TEST_CASE("validate: a merge refuses overlaps that are not exact")
{
  memory buffers;
  mhar::merge_problem<float> problem;
  problem.extent = {positions, width, 2};
  problem.num_parts = 2;
  problem.parts = mhar::source_major(buffers.rows.data(), positions, width);
  problem.part_lse = buffers.sum(0);
  problem.part_lse_stride = positions * 2;
  problem.mix = {buffers.rows.data(), width};
  problem.lse = buffers.sum(0);
  CHECK(validate(problem).ok());
  problem.mix.data = buffers.rows.data() + 1;
  CHECK(validate(problem).code == code::aliasing);
  problem.mix.data = problem.lse;  // over what is read of a part besides its mix
  problem.lse = nullptr;
  CHECK(validate(problem).code == code::aliasing);
  CHECK(std::string{validate(problem).argument} == "mix");
  problem.mix.data = buffers.matrix(0);
  problem.lse = buffers.rows.data();
  CHECK(validate(problem).code == code::aliasing);
  CHECK(std::string{validate(problem).argument} == "lse");
  problem.lse = buffers.sum(0);
  problem.part_lse_stride = 1;
  CHECK(std::string{validate(problem).argument} == "part_lse_stride");
  problem.part_lse_stride = std::numeric_limits<std::int64_t>::max();
  CHECK(std::string{validate(problem).argument} == "part_lse_stride");
  problem.num_parts = 0;
  CHECK(std::string{validate(problem).argument} == "num_parts");
}

TEST_CASE("status: check throws what the code says, with the argument in the message")
{
  CHECK_NOTHROW(mhar::check(mhar::status{}));
  const mhar::status refused{code::bad_shape, "num_rows", "there is no source", 0};
  CHECK_THROWS_WITH_AS(mhar::check(refused), "mhar: num_rows: there is no source",
                       mhar::invalid_argument);
  const mhar::status failed{code::cuda, "launch", "the kernel could not be launched", 98};
  CHECK_THROWS_AS(mhar::check(failed), mhar::cuda_error);
}
