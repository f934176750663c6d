// SPDX-License-Identifier: Apache-2.0
//! Inputs that have broken other implementations, as bodies that run on any backend; docs/testing.md lists where each comes from.
//!
//! `On` runs a call_case: On::forward(data) and On::backward(data). The reference judges every body; where a right answer is known
//! by hand it is written down besides.
#pragma once

#include "support/call_case.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

namespace mhar_test {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

//! Sets every element to value(row, position, column).
template <class Value>
void set_each(tensor& array, const Value& value)
{
  if constexpr (std::is_arithmetic_v<Value>) {
    array.for_each([&](auto... at) { array.set(at..., value); });
  }
  else {
    array.for_each([&](auto... at) { array.set(at..., value(at...)); });
  }
}

template <class Holds>
bool each(tensor& array, const Holds& holds)
{
  bool all = true;
  array.for_each([&](auto... at) { all = all && holds(array.get(at...)); });
  return all;
}
inline bool each_finite(tensor& array)
{
  return each(array, [](double value) { return std::isfinite(value); });
}
inline bool each_near(tensor& array, double expected, double difference)
{
  return each(array,
              [&](double value) { return std::abs(value - expected) <= std::abs(difference); });
}

//! The bytes of an array's elements, as double.
inline std::vector<double> elements_of(tensor& array)
{
  std::vector<double> all;
  array.for_each([&](auto... at) { all.push_back(array.get(at...)); });
  return all;
}

//! A plain call of given extents: no norm weight, and what the backward needs is not given.
template <class T>
call_options<T> plain_options(const mhar::shape& extent, int num_rows)
{
  call_options<T> options;
  options.extent = extent;
  options.num_rows = num_rows;
  options.norm_weight = false;
  options.output_norm_weight = false;
  options.given_lse = options.given_mix = options.given_inverse_rms = options.given_combined =
      false;
  return options;
}

//! Without `forward_is_said` the caller judges the forward: the reference's is one of several right ones.
template <class T, class On>
void run_and_check(call_case<T>& data, On on, bool forward_is_said = true)
{
  data.expect();
  on.forward(data);
  if (forward_is_said) { CHECK_PASSES(data.check_forward()); }
  on.backward(data);
  CHECK_PASSES(data.check_backward());
}

//! A1 a, b: all sources but one have a logit of -inf, or one so low that their weight is 0.
template <class On>
void one_source_with_weight(On on)
{
  for (const int num_rows : {5, 9, 33, 65}) {
    for (const int special : {0, 2, 4, num_rows - 1}) {
      for (const double huge : {-3e38, -1e30}) {
        CAPTURE(num_rows);
        CAPTURE(special);
        CAPTURE(huge);
        random_inputs random{601};
        call_case<float> data{plain_options<float>({3, 16, 2, 0}, num_rows), random};
        set_each(data.inputs().rows, [&](std::int64_t n, std::int64_t, std::int64_t k) {
          return n != special ? 1.0 : k >= 8 ? 2.0 : k % 4 == 0 ? 0.0 : 7.0;
        });
        set_each(data.inputs().query, [&](std::int64_t, std::int64_t, std::int64_t k) {
          return k == 0 || k == 4 ? huge : 0.0;
        });
        set_each(data.inputs().output_gradient, 1.0);
        run_and_check(data, on);
        tensor& y = data.results().y;
        y.for_each([&](std::int64_t, std::int64_t p, std::int64_t k) {
          if (k < 8) { CHECK(y.get(0, p, k) == (k % 4 == 0 ? 0.0 : 7.0)); }
          else {
            CHECK(std::abs(y.get(0, p, k) - (1 + 1.0 / num_rows)) <= 1e-6);
          }
        });
        tensor& ds = data.results().row_gradients;
        CHECK(each_finite(ds));
        CHECK(each_finite(data.results().query));
        ds.for_each([&](std::int64_t n, std::int64_t p, std::int64_t k) {
          if (n != special && k < 8) { CHECK(ds.get(n, p, k) == 0); }
        });
      }
    }
  }
}

//! One source's lse is its logit, and its key is inexact wherever it may be rounded: how often that happens shows.
template <class On>
void keys_are_rounded(On on)
{
  random_inputs random{640};
  const double weight = 1 + 0x1p-9;              // is no bfloat16
  const double key = 1 / std::sqrt(2.5 + 1e-6);  // 0.63246, as bfloat16 0.6328125
  const double logits[] = {512 * weight * key, 512 * weight * 0.6328125, 512 * 0.6328125};
  for (const mhar::key_rounding rounding :
       {mhar::key_rounding::none, mhar::key_rounding::storage, mhar::key_rounding::storage_twice}) {
    for (const bool null : {false, true}) {
      CAPTURE(static_cast<int>(rounding));
      CAPTURE(null);
      call_options<mhar::bfloat16> options =
          plain_options<mhar::bfloat16>({2, 2, 1, 0}, null ? 0 : 1);
      options.norm_weight = true;
      options.null_source = null;
      options.rounding = rounding;
      call_case<mhar::bfloat16> data{options, random};
      const auto one_two = [](auto, auto, std::int64_t k) { return k == 0 ? 1.0 : 2.0; };
      if (null) { set_each(data.inputs().null_source, one_two); }
      else {
        set_each(data.inputs().rows, one_two);
      }
      set_each(data.inputs().norm_weight, weight);
      set_each(data.inputs().query,
               [](std::int64_t, std::int64_t, std::int64_t k) { return k == 0 ? 512.0 : 0.0; });
      run_and_check(data, on);
      CHECK(each_near(data.results().lse, logits[static_cast<int>(rounding)], 0.01));
    }
  }
}

//! A1 c: no row has weight beside a null source of zeros, so the partial comes back bit for bit.
template <class T, class On>
void null_source_takes_all(On on)
{
  random_inputs random{602};
  call_options<T> options = plain_options<T>({4, 24, 3, 0}, 5);
  options.null_source = options.partial = options.gate = true;
  call_case<T> data{options, random};
  set_each(data.inputs().null_source, 0.0);
  set_each(data.inputs().rows, 1.0);
  set_each(data.inputs().query, -3e38);
  set_each(data.inputs().gate, 1.0);
  data.expect();
  on.forward(data);
  CHECK(elements_of(data.results().y) == elements_of(data.inputs().partial));
}

//! A1 d: a position whose logits are all -inf gives mix 0 and lse -inf in that head, and changes no other bit.
template <class On>
void position_without_a_finite_logit(On on)
{
  random_inputs random{603};
  call_case<float> data{plain_options<float>({5, 16, 2, 0}, 6), random};
  tensor& query = data.inputs().query;
  tensor& rows = data.inputs().rows;
  for (std::int64_t k = 0; k < 8; ++k) { query.set(0, 0, k, k == 0 ? -3e38 : 0.0); }
  const auto first_column = [&](double of_position_3) {
    for (int n = 0; n < 6; ++n) {
      for (int p = 0; p < 5; ++p) { rows.set(n, p, 0, p == 3 ? of_position_3 : 0.0); }
    }
    data.expect();
    on.forward(data);
    return elements_of(data.results().y);
  };
  const std::vector<double> good = first_column(0);
  CHECK_PASSES(data.check_forward());  // in double, -1e39 is finite: the other run is judged below
  const std::vector<double> bad = first_column(5);
  for (std::size_t i = 0; i < good.size(); ++i) {
    if (i / 16 != 3) { CHECK(bad[i] == good[i]); }
    else if (i % 16 < 8) {
      CHECK(bad[i] == 0);
    }
  }
  CHECK(data.results().lse.get(0, 3, 0) == -infinite);
}

//! A1 f: logits 1e4 apart.
template <class On>
void weights_of_one_and_zero(On on)
{
  random_inputs random{604};
  call_case<float> data{plain_options<float>({1, 2, 1, 0}, 2), random};
  set_each(data.inputs().query,
           [](std::int64_t, std::int64_t, std::int64_t k) { return k == 0 ? 1e4 : -1e4; });
  set_each(data.inputs().rows,
           [](std::int64_t n, std::int64_t, std::int64_t k) { return n == k ? 1.0 : 0.0; });
  run_and_check(data, on);
  CHECK(elements_of(data.results().weights) == std::vector<double>{1, 0});
  CHECK(elements_of(data.results().y) == std::vector<double>{1, 0});
  CHECK(each_finite(data.results().query));
}

//! A single source: a weight of exactly 1 for every finite logit; one that is not finite shows, in its head and position alone.
template <class T, class On>
void single_source(On on)
{
  for (const bool null_source : {false, true}) {
    for (const double special : {3e4, -3e4, 0.0, not_a_number, infinite, -infinite}) {
      for (const bool in_bias : {false, true}) {
        CAPTURE(null_source);
        CAPTURE(special);
        CAPTURE(in_bias);
        random_inputs random{618};
        call_options<T> options = plain_options<T>({3, 48, 2, 0}, null_source ? 0 : 1);
        options.null_source = null_source;
        options.bias = in_bias;
        call_case<T> data{options, random};
        tensor& source = null_source ? data.inputs().null_source : data.inputs().rows;
        source.for_each([&](std::int64_t, std::int64_t p, std::int64_t k) {
          source.set(0, p, k, std::abs(source.get(0, p, k)) + 0.5);
        });
        (in_bias ? data.inputs().bias : data.inputs().query).set(0, 0, 0, special);
        run_and_check(data, on, special != infinite);
        // A query's element 0 is in head 0, a bias in both.
        data.results().y.for_each([&](std::int64_t, std::int64_t p, std::int64_t k) {
          const double y = data.results().y.get(0, p, k);
          const double row =
              mhar::widen<double>(mhar::round_to<T>(source.get(0, null_source ? 0 : p, k)));
          const bool reached = in_bias || k < 24;
          if (reached && special == -infinite) { CHECK(y == 0); }
          else if (reached && std::isnan(special)) {
            CHECK(std::isnan(y));
          }
          else if (reached && special == infinite) {
            CHECK((std::isnan(y) || y == row));
          }
          else {
            CHECK(y == row);
          }
        });
      }
    }
  }
}

//! A2: sums of squares that overflow the rows' type, or fp32.
template <class T, class On>
void large_rows(On on, std::int64_t width, double size, int num_rows)
{
  CAPTURE(width);
  CAPTURE(size);
  random_inputs random{605};
  for (const bool normed : {true, false}) {
    call_options<T> options = plain_options<T>({2, width, 1, 0}, num_rows);
    options.norm = normed ? mhar::output_norm::rms : mhar::output_norm::none;
    call_case<T> data{options, random};
    set_each(data.inputs().rows, size);
    set_each(data.inputs().query, 0.0);
    data.expect();
    on.forward(data);
    const double row = data.inputs().rows.get(0, 0, 0);
    CHECK(each_near(data.results().y, normed ? 1.0 : row, normed ? 1e-3 : 0.0));
  }
}
template <class On>
void all_large_rows(On on)
{
  large_rows<mhar::float16>(on, 512, 300, 1);
  large_rows<mhar::float16>(on, 512, 65504, 1);
  large_rows<mhar::float16>(on, 7168, 65504, 1);
  large_rows<mhar::float16>(on, 512, 60000, 64);
  for (const double size : {1e15, 1e19}) {
    large_rows<mhar::bfloat16>(on, 512, size, 1);
    large_rows<float>(on, 7168, size, 1);
  }
  random_inputs random{606};
  call_case<mhar::float16> keys{plain_options<mhar::float16>({1, 512, 1, 0}, 4), random};
  set_each(keys.inputs().rows, 300.0);
  set_each(keys.inputs().query, 1.0 / 512);
  keys.expect();
  on.forward(keys);
  CHECK(each_near(keys.results().lse, 1 + std::log(4.0), 1e-5));
}

//! A3: gradients of parameters over more positions than a bf16 number counts.
template <class On>
void parameter_gradients_count(On on)
{
  using T = mhar::bfloat16;
  static_assert(std::is_same_v<mhar::accumulate_t<T>, float>, "statistics are fp32");
  random_inputs random{607};
  call_options<T> options = plain_options<T>({4096, 64, 1, 0}, 1);
  options.norm = mhar::output_norm::rms;
  options.output_norm_weight = true;
  options.parameter_gradients = mhar::element::float32;
  const auto with_ones = [](call_case<T>& data) {
    for (tensor* array :
         {&data.inputs().rows, &data.inputs().output_norm_weight, &data.inputs().output_gradient}) {
      set_each(*array, 1.0);
    }
    set_each(data.inputs().query, 0.0);
  };
  call_case<T> many{options, random};
  with_ones(many);
  run_and_check(many, on);
  CHECK(each_near(many.results().output_norm_weight, 4096, 0.1));

  std::vector<double> before(64, 0.0);
  options.mode = mhar::update::accumulate;
  for (const std::int64_t positions : {256, 1}) {
    options.extent.num_positions = positions;
    call_case<T> part{options, random};
    with_ones(part);
    part.expect();
    part.results().output_norm_weight.for_each([&](auto, auto, std::int64_t k) {
      part.results().output_norm_weight.set(0, 0, k, before[static_cast<std::size_t>(k)]);
    });
    on.backward(part);
    before = elements_of(part.results().output_norm_weight);
  }
  for (const double sum : before) { CHECK(std::abs(sum - 257) <= 0.01); }

  for (const std::int64_t positions : {1, 4096}) {
    call_case<T> pair{plain_options<T>({positions, 64, 1, 0}, 2), random};
    set_each(pair.inputs().rows, [](std::int64_t n, std::int64_t, std::int64_t k) {
      return n == 1 && k % 2 == 1 ? -1.0 : 1.0;
    });
    set_each(pair.inputs().query, 0.0);
    set_each(pair.inputs().output_gradient, 1.0);
    run_and_check(pair, on);
    for (std::int64_t k = 0; k < 64; ++k) {
      const double expected = k % 2 == 0 ? 0.0 : 32.0 * static_cast<double>(positions);
      CHECK(std::abs(pair.results().query.get(0, 0, k) - expected) <= 1e-3 * expected);
    }
  }
}

//! A4: gradients reach o through y and besides it.
template <class T, class On>
void upstream_on_o_is_added_last(On on)
{
  random_inputs random{608};
  call_options<T> options = plain_options<T>({1, 2, 1, 0}, 1);
  options.null_source = options.partial = options.gate = options.combined_upstream = true;
  options.norm = mhar::output_norm::rms;
  options.output_norm_weight = true;
  options.eps = 1e-13;
  options.parameters = mhar::element::float64;
  options.parameter_gradients = mhar::element_of<T>::value;
  call_case<T> data{options, random};
  call_inputs<T>& in = data.inputs();
  for (tensor* zeros : {&in.null_source, &in.query}) { set_each(*zeros, 0.0); }
  for (tensor* ones : {&in.partial, &in.gate, &in.output_norm_weight}) { set_each(*ones, 1.0); }
  const auto pair_of = [](double first, double second) {
    return [=](std::int64_t, std::int64_t, std::int64_t k) { return k == 0 ? first : second; };
  };
  const auto check_pair = [](tensor& values, double first, double second) {
    CHECK(std::abs(values.get(0, 0, 0) - first) <= 1e-5 * std::abs(first));
    CHECK(std::abs(values.get(0, 0, 1) - second) <= 1e-5 * std::abs(second));
  };
  call_results<T>& out = data.results();
  set_each(in.rows, pair_of(4, 6));
  set_each(in.output_gradient, pair_of(1, 0));
  set_each(in.combined_gradient, pair_of(10, 20));
  data.expect();
  on.forward(data);
  on.backward(data);
  check_pair(out.y, .8485281, 1.1313708);
  check_pair(out.partial_gradient, 10.181019, 19.864235);
  check_pair(out.row_gradients, 5.0905097, 9.9321178);
  check_pair(out.query, 31.360831, 47.041247);
  check_pair(out.output_norm_weight, .8485281, 0);
  CHECK(std::abs(out.gate.get(0, 0, 0) - 79.954745) <= 1e-3);
  set_each(in.combined_gradient, 0.0);
  data.expect();
  on.backward(data);
  check_pair(out.partial_gradient, 0.181019, -0.135765);
  set_each(in.combined_gradient, pair_of(10, 20));
  set_each(in.output_gradient, 0.0);
  data.expect();
  on.backward(data);
  CHECK(elements_of(out.partial_gradient) == std::vector<double>{10, 20});
}

}  // namespace mhar_test
