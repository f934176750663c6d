// SPDX-License-Identifier: Apache-2.0
//! The inverse rms of a row on the CPU: one value, bit for bit, whatever kind of pass computes it, and an infinite element stays
//! in its head.
#include "cpu/cpu_runs.hpp"

#include <mhar/cpu/backend.hpp>

#include <cmath>
#include <cstring>
#include <limits>

using namespace mhar_test;

namespace {

template <class T>
using reals = std::vector<mhar::accumulate_t<T>>;

//! A pass over all rows for `num_calls` calls of a zero query; the last row is a private one. Their inverse rms.
template <class T>
reals<T> from_pass(const mhar::shape& extent, const std::vector<T>& rows, int num_rows,
                   int num_calls)
{
  const auto positions = static_cast<std::size_t>(extent.num_positions);
  const auto size = positions * static_cast<std::size_t>(extent.width);
  const auto calls = static_cast<std::size_t>(num_calls);
  const auto all = static_cast<std::size_t>(num_rows);
  reals<T> query(calls * static_cast<std::size_t>(extent.width));
  reals<T> gate(calls, 1);
  reals<T> mix(calls * size);
  reals<T> lse(calls * positions * static_cast<std::size_t>(extent.num_heads));
  reals<T> result(all * positions);
  mhar::advance_problem<T> pass;
  pass.extent = extent;
  pass.sites.query = query.data();
  pass.sites.gate = pass.sites.logit_gate = gate.data();
  pass.num_calls = num_calls;
  pass.rows = mhar::source_major(rows.data(), extent.num_positions, extent.width);
  pass.num_rows = pass.num_new_rows = num_rows - 1;
  pass.inverse_rms = result.data();
  pass.private_row = rows.data() + (all - 1) * size;
  pass.private_stride = extent.width;
  pass.private_inverse_rms = result.data() + (all - 1) * positions;
  constexpr mhar::element type = mhar::element_of<mhar::accumulate_t<T>>::value;
  pass.states = {mix.data(), type, static_cast<std::int64_t>(size), lse.data(), -1};
  cpu_context context{
      mhar::cpu::backend::workspace_bytes<T>(mhar::sweep_limits{extent, num_calls, num_rows})};
  mhar::check(mhar::cpu::advance(pass, context.get()));
  return result;
}

//! From a call of its own.
template <class T>
reals<T> from_call(const mhar::shape& extent, const std::vector<T>& rows, int num_rows,
                   mhar::key_rounding rounding)
{
  const reals<T> query(static_cast<std::size_t>(extent.width));
  reals<T> result(static_cast<std::size_t>(num_rows * extent.num_positions));
  mhar::route_problem<T> problem;
  problem.extent = extent;
  problem.num_rows = num_rows;
  problem.rows = mhar::source_major(rows.data(), extent.num_positions, extent.width);
  problem.site.query = query.data();
  problem.site.rounding = rounding;
  problem.outputs.inverse_rms = result.data();
  route_on_cpu(problem);
  return result;
}

template <class T>
void check_bits(std::uint64_t stream)
{
  random_inputs random{stream};
  for (const mhar::shape& extent : {mhar::shape{3, 24, 3, 0}, mhar::shape{2, 300, 2, 0},
                                    mhar::shape{2, 301, 7, 0}, mhar::shape{1, 1030, 1, 0}}) {
    constexpr int num_rows = 6;
    const std::vector<T> rows = random.vector<T>(num_rows * extent.num_positions * extent.width);
    const reals<T> alone = from_pass(extent, rows, num_rows, 1);
    CHECK(alone == from_pass(extent, rows, num_rows, 2));
    CHECK(alone == from_pass(extent, rows, num_rows, 5));
    CHECK(alone == from_call(extent, rows, num_rows, mhar::key_rounding::none));
    CHECK(alone == from_call(extent, rows, num_rows, mhar::key_rounding::storage));
  }
}

}  // namespace

TEST_CASE("cpu: a row has one inverse rms, bit for bit, whatever pass computes it")
{
  check_bits<float>(251);
  check_bits<double>(252);
  check_bits<mhar::bfloat16>(253);
}

TEST_CASE("cpu: an infinite element gives the inverse rms 0, and the other head is finite")
{
  random_inputs random{254};
  std::vector<float> rows = random.vector<float>(3 * 8);
  rows[8] = std::numeric_limits<float>::infinity();
  const std::vector<float> query = random.vector<float>(8);
  std::vector<float> y(8);
  std::vector<float> inverse_rms(3);
  mhar::route_problem<float> problem;
  problem.extent = {1, 8, 2, 0};
  problem.num_rows = 3;
  problem.rows = mhar::source_major(rows.data(), 1, 8);
  problem.site.query = query.data();
  problem.outputs.y = {y.data(), 8};
  problem.outputs.inverse_rms = inverse_rms.data();
  route_on_cpu(problem);
  CHECK(inverse_rms[1] == 0);
  for (std::size_t k = 0; k < 8; ++k) { CHECK(std::isfinite(y[k]) == (k >= 4)); }
}
