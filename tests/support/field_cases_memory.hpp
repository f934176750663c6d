// SPDX-License-Identifier: Apache-2.0
//! The second half of the cases: products with zero, alignment, strides, store and accumulate, mixed types, update of a row.
#pragma once

#include "support/field_cases.hpp"

namespace mhar_test {

//! A factor of exactly 0 is not multiplied by an infinity: a closed gate, a source without weight, a single source.
template <class T, class On>
void zero_factors_meet_infinities(On on, std::int64_t width)
{
  random_inputs random{610};
  for (const mhar::key_rounding rounding :
       {mhar::key_rounding::none, mhar::key_rounding::storage, mhar::key_rounding::storage_twice}) {
    const auto run = [&](auto change, bool gate, int num_rows) {
      CAPTURE(static_cast<int>(rounding));
      CAPTURE(gate);
      CAPTURE(num_rows);
      call_options<T> options = plain_options<T>({3, width, 2, 0}, num_rows);
      options.rounding = rounding;
      options.gate = gate;
      options.partial = true;
      options.bias = num_rows > 1;
      options.null_source = num_rows == 0;
      call_case<T> data{options, random};
      if (gate) { set_each(data.inputs().gate, 0.0); }
      change(data.inputs());
      data.expect();
      on.backward(data);
      CHECK_PASSES(data.check_backward());
      return each(data.results().row_gradients, [](double value) { return !std::isnan(value); });
    };
    const auto upstream = [](call_inputs<T>& in) {
      in.output_gradient.set(0, 1, 5, infinite);
      in.output_gradient.set(0, 2, 40, -infinite);
    };
    CHECK(run(upstream, true, 4));
    CHECK(run(upstream, true, 1));
    CHECK(run(upstream, false, 1));
    // Rows 1 to 4 have no weight: theirs is a gradient of 0 whatever comes down.
    run(
        [&](call_inputs<T>& in) {
          upstream(in);
          for (std::int64_t n = 1; n < 5; ++n) { in.bias.set(0, 0, n, -infinite); }
        },
        false, 5);
    // Nor has it one whatever the gate.
    run(
        [&](call_inputs<T>& in) {
          in.gate.set(0, 0, 0, infinite);
          for (std::int64_t n = 1; n < 5; ++n) { in.bias.set(0, 0, n, -infinite); }
        },
        true, 5);
    // One source has weight 1 whatever its key.
    CHECK(run([](call_inputs<T>& in) { in.query.set(0, 0, 3, infinite); }, false, 1));
    CHECK(run([](call_inputs<T>& in) { in.rows.set(0, 1, 3, infinite); }, false, 1));
    CHECK(run([](call_inputs<T>& in) { in.rows.set(0, 1, 3, not_a_number); }, false, 1));
    CHECK(run([](call_inputs<T>& in) { in.null_source.set(0, 0, 3, infinite); }, false, 0));
    CHECK(run([](call_inputs<T>& in) { in.null_source.set(0, 0, 3, not_a_number); }, false, 0));
  }
}

//! A null source whose bias is -inf has weight 0: an infinite upstream gradient does not reach its gradient.
template <class T, class On>
void null_source_without_weight(On on, std::int64_t width)
{
  random_inputs random{641};
  call_options<T> options = plain_options<T>({3, width, 2, 0}, 2);
  options.null_source = options.bias = true;
  call_case<T> data{options, random};
  data.inputs().bias.set(0, 0, 0, -infinite);
  data.inputs().output_gradient.set(0, 1, 5, infinite);
  data.expect();
  on.backward(data);
  CHECK_PASSES(data.check_backward());
  CHECK(each(data.results().null_source, [](double value) { return value == 0; }));
  CHECK(data.results().bias.get(0, 0, 0) == 0);
}

//! A null source whose squares overflow: its inverse rms is found anew by the backward, with lse given or not.
template <class T, class On>
void large_null_source(On on, std::int64_t width)
{
  CAPTURE(width);
  random_inputs random{642};
  for (const mhar::key_rounding rounding :
       {mhar::key_rounding::none, mhar::key_rounding::storage}) {
    for (const bool given : {true, false}) {
      CAPTURE(given);
      call_options<T> options = plain_options<T>({3, width, 2, 0}, 2);
      options.null_source = true;
      options.rounding = rounding;
      options.given_lse = options.given_mix = given;
      call_case<T> data{options, random};
      set_each(data.inputs().null_source, [](std::int64_t, std::int64_t, std::int64_t k) {
        return k % 3 == 0 ? 1e19 : -1e19;
      });
      run_and_check(data, on);
    }
  }
}

//! The same array, its elements one past a 16-byte boundary.
inline void misalign(tensor& array)
{
  if (!array) { return; }
  tensor moved{array.type(), array.where(), 1};
  array.for_each([&](auto... at) { moved.set(at..., array.get(at...)); });
  array = std::move(moved);
}
inline void misalign_output(tensor& array)
{
  if (array) { array = tensor{array.type(), array.where(), 1}; }
}

//! B3 b: one array after the other lies on no 16-byte boundary; not a bit changes.
template <class T, class On>
void one_array_misaligned(On on)
{
  for (const std::int64_t width : {80, 1280}) {
    call_options<T> options = plain_options<T>({7, width, 8, 0}, 3);
    options.null_source = options.partial = options.norm_weight = true;
    options.norm = mhar::output_norm::rms;
    options.output_norm_weight = true;
    std::vector<double> expected;
    for (int which = -1; which < 9; ++which) {
      CAPTURE(which);
      random_inputs random{611};
      call_case<T> data{options, random};
      call_inputs<T>& in = data.inputs();
      call_results<T>& out = data.results();
      tensor* const inputs[] = {&in.rows,    &in.query,       &in.norm_weight,
                                &in.partial, &in.null_source, &in.output_gradient};
      tensor* const outputs[] = {&out.y, &out.mix, &out.row_gradients};
      if (which >= 0 && which < 6) { misalign(*inputs[which]); }
      if (which >= 6) { misalign_output(*outputs[which - 6]); }
      run_and_check(data, on);
      std::vector<double> now = elements_of(out.y);
      for (tensor* more : {&out.mix, &out.row_gradients}) {
        const std::vector<double> values = elements_of(*more);
        now.insert(now.end(), values.begin(), values.end());
      }
      if (which < 0) { expected = now; }
      CHECK(now == expected);
    }
  }
}

//! B3 a: the same call twenty times.
template <class T, class On>
void twenty_runs(On on)
{
  for (const std::int64_t width : {111, 769, 3584}) {
    random_inputs random{612};
    call_options<T> options;
    options.extent = {7, width, width == 111 ? 3 : width == 769 ? 1 : 28, 0};
    options.num_rows = 3;
    call_case<T> data{options, random};
    std::vector<double> first;
    for (int run = 0; run < 20; ++run) {
      on.forward(data);
      on.backward(data);
      std::vector<double> now;
      const auto append = [&](const char*, tensor& array) {
        const std::vector<double> values = elements_of(array);
        now.insert(now.end(), values.begin(), values.end());
      };
      data.results().for_each_forward(append);
      data.results().for_each_gradient(append);
      if (run == 0) { first = now; }
      CHECK(now == first);
    }
    CHECK_PASSES(data.check_forward());
    CHECK_PASSES(data.check_backward());
  }
}

//! D1: an upstream gradient of stride 0 is read as what it stands for.
template <class T, class On>
void broadcast_upstream(On on)
{
  random_inputs random{613};
  call_case<T> data{plain_options<T>({15, 80, 8, 0}, 3), random};
  set_each(data.inputs().output_gradient, 1.0);
  data.expect();
  on.backward(data);
  CHECK_PASSES(data.check_backward());
  const std::vector<double> expected = elements_of(data.results().row_gradients);
  const std::vector<double> query = elements_of(data.results().query);
  placement repeated = data.inputs().output_gradient.where();
  repeated.position_stride = 0;
  data.inputs().output_gradient = tensor{mhar::element_of<T>::value, repeated};
  set_each(data.inputs().output_gradient, 1.0);
  data.expect();
  on.backward(data);
  CHECK(elements_of(data.results().row_gradients) == expected);
  CHECK(elements_of(data.results().query) == query);
}

//! D3 a, b: storing never reads; accumulating into zeros is storing; accumulating adds, every time.
template <class T, class On>
void store_and_accumulate(On on)
{
  const auto run = [&](mhar::update mode, double before, int times) {
    random_inputs random{614};
    call_options<T> options;
    options.extent = {8, 80, 8, 0};
    options.num_rows = 5;
    options.null_source = options.bias = options.gate = options.partial = true;
    options.norm = mhar::output_norm::rms;
    options.mode = mode;
    options.row_gradient_type = options.outputs = mhar::element::float32;
    call_case<T> data{options, random};
    data.results().for_each_gradient([&](const char*, tensor& array) { set_each(array, before); });
    for (int i = 0; i < times; ++i) { on.backward(data); }
    std::vector<double> all;
    data.results().for_each_gradient([&](const char*, tensor& array) {
      const std::vector<double> values = elements_of(array);
      all.insert(all.end(), values.begin(), values.end());
    });
    return all;
  };
  // Values that are drawn for accumulating come last, so both modes see the same inputs.
  const std::vector<double> stored = run(mhar::update::store, not_a_number, 1);
  CHECK(run(mhar::update::store, not_a_number, 2) == stored);
  CHECK(run(mhar::update::accumulate, 0, 1) == stored);
  const std::vector<double> once = run(mhar::update::accumulate, 3, 1);
  const std::vector<double> twice = run(mhar::update::accumulate, 3, 2);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const double size = 3 + std::abs(stored[i]);
    CHECK(std::isfinite(stored[i]));
    CHECK(std::abs(once[i] - (3 + stored[i])) <= 1e-6 * size);
    CHECK(std::abs(twice[i] - (3 + 2 * stored[i])) <= 2e-6 * size);
  }
}

//! D4: parameters of another type than the rows are used as they are, and get gradients of their own type.
template <class On>
void parameters_of_another_type(On on)
{
  using T = mhar::bfloat16;
  random_inputs random{615};
  call_case<T> data{plain_options<T>({1, 512, 1, 0}, 2), random};
  set_each(data.inputs().rows,
           [](std::int64_t n, std::int64_t, std::int64_t) { return n == 0 ? 1.0 : 0.0; });
  set_each(data.inputs().query, [](std::int64_t, std::int64_t, std::int64_t k) {
    return k % 2 == 0 ? 1.001953125 : -1.0;
  });
  data.expect();
  on.forward(data);
  CHECK(each_near(data.results().y, 0.62109375, 0));

  const auto check = [&](auto row, mhar::element parameters, mhar::element activations) {
    using row_type = decltype(row);
    call_options<row_type> options = plain_options<row_type>({5, 96, 4, 0}, 3);
    options.norm_weight = options.partial = options.gate = true;
    options.parameters = options.parameter_gradients = parameters;
    options.activations = options.outputs = activations;
    call_case<row_type> mixed{options, random};
    run_and_check(mixed, on);
  };
  check(mhar::bfloat16{}, mhar::element::bfloat16, mhar::element::bfloat16);
  check(mhar::float16{}, mhar::element::bfloat16, mhar::element::float16);
  check(mhar::bfloat16{}, mhar::element::float32, mhar::element::float32);
  check(float{}, mhar::element::bfloat16, mhar::element::bfloat16);
}

//! A closed gate: o is the partial, every bit of it but what makes a NaN signalling.
template <class T, class On>
void closed_gate_gives_the_partial(On on)
{
  random_inputs random{616};
  call_options<T> options = plain_options<T>({256, 256, 2, 0}, 2);
  options.partial = options.gate = true;
  call_case<T> data{options, random};
  set_each(data.inputs().gate, 0.0);
  data.inputs().rows.set(1, 7, 9, infinite);
  auto* const bits = static_cast<T*>(data.inputs().partial.data());
  for (std::uint32_t i = 0; i < 65536; ++i) { bits[i].bits = static_cast<std::uint16_t>(i); }
  data.expect();
  on.forward(data);
  const auto* const y = static_cast<const T*>(data.results().y.data());
  for (std::uint32_t i = 0; i < 65536; ++i) {
    if (std::isnan(mhar::to_float(bits[i]))) { CHECK(std::isnan(mhar::to_float(y[i]))); }
    else {
      CHECK(y[i].bits == i);
    }
  }
}

//! `prefix += delta` in front of a call: the same bits as the addition, then the call; `sum` in the row's place or elsewhere.
template <class T, class On>
void update_of_a_row(On on)
{
  for (const std::int64_t width : {100, 1280}) {
    for (const std::int64_t positions : {1, 3, 70}) {
      for (const bool in_place : {true, false}) {
        CAPTURE(width);
        CAPTURE(positions);
        random_inputs random{617};
        call_options<T> options;
        options.extent = {positions, width, 4, 0};
        options.num_rows = 6;
        options.null_source = true;
        options.norm = mhar::output_norm::rms;
        call_case<T> data{options, random};
        tensor& rows = data.inputs().rows;
        const mhar::element type =
            positions == 3 ? mhar::element::float32 : mhar::element_of<T>::value;
        tensor delta{type, matrix_of(positions, width)};
        tensor sum{mhar::element_of<T>::value, matrix_of(positions, width)};
        tensor copy{mhar::element_of<T>::value, matrix_of(positions, width)};
        set_each(delta, [&](auto...) { return random.normal(); });
        const std::vector<double> before = elements_of(rows);
        on.update(data, 5, delta, in_place ? nullptr : &sum, copy);
        const std::vector<double> y = elements_of(data.results().y);
        const std::vector<double> mix = elements_of(data.results().mix);
        const std::vector<double> updated = elements_of(rows);
        const std::size_t size = static_cast<std::size_t>(positions * width);

        std::vector<double> expected = before;
        delta.for_each([&](std::int64_t, std::int64_t p, std::int64_t k) {
          using accumulate = mhar::accumulate_t<T>;
          const std::size_t at = 5 * size + static_cast<std::size_t>(p * width + k);
          const auto total =
              static_cast<accumulate>(before[at]) + static_cast<accumulate>(delta.get(0, p, k));
          expected[at] = mhar::widen<double>(mhar::round_to<T>(total));
        });
        const std::vector<double> last(expected.end() - static_cast<std::ptrdiff_t>(size),
                                       expected.end());
        CHECK(updated == (in_place ? expected : before));
        CHECK(elements_of(copy) == last);
        if (!in_place) { CHECK(elements_of(sum) == last); }
        CHECK(copy.surroundings_intact());
        CHECK(sum.surroundings_intact());

        for (std::size_t i = 0; i < size; ++i) {
          const auto p = static_cast<std::int64_t>(i) / width;
          rows.set(5, p, static_cast<std::int64_t>(i) % width, last[i]);
        }
        data.expect();
        on.forward(data);
        CHECK_PASSES(data.check_forward());
        CHECK(elements_of(data.results().y) == y);
        CHECK(elements_of(data.results().mix) == mix);
      }
    }
  }
}

}  // namespace mhar_test
