// SPDX-License-Identifier: Apache-2.0
//! One fuzzed routing call or merge, any backend: a valid one gives the reference's result, a spoilt one what fuzz/spoilt.hpp says.
#pragma once

#include "fuzz/merge_fuzz.hpp"

namespace mhar_test {

//! Numbers that a normal distribution does not give, into a few places of an array.
inline void put_special_values(tensor& array, entropy& choices)
{
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  static const double values[] = {
      0.0, -0.0, infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 1e-40, -4.0, 1.0};
  const placement& where = array.where();
  if (!array || where.num_positions == 0 || where.num_rows() == 0) { return; }
  if (choices.once_in(8)) {
    const double value = values[choices.integer(0, 7)];
    array.for_each([&](auto... at) { array.set(at..., value); });
  }
  for (std::int64_t i = choices.integer(0, 3); i > 0; --i) {
    array.set(choices.integer(0, where.num_rows() - 1), choices.integer(0, where.num_positions - 1),
              choices.integer(0, where.width - 1), values[choices.integer(0, 7)]);
  }
}

//! Takes a number out of an array.
inline void without(double number, tensor& array)
{
  array.for_each([&](auto... at) {
    if (array.get(at...) == number) { array.set(at..., 1.0); }
  });
}

//! A random call with special values in its inputs, against the reference.
template <class T, class Backend>
void fuzz_valid_call(entropy& choices, Backend& backend)
{
  const call_options<T> options = random_options<T>(choices, 200);
  random_inputs random = random_inputs::seeded(choices.bits());
  call_case<T> data{options, random};
  const bool special = choices.once_in(2);
  if (special) {
    call_inputs<T>& in = data.inputs();
    bool infinite_factor = false;
    for (tensor* array : {&in.partial, &in.gate, &in.output_norm_weight, &in.output_gradient,
                          &in.combined_gradient, &in.rows, &in.bias, &in.null_source}) {
      if (choices.once_in(4)) { put_special_values(*array, choices); }
      if (array == &in.partial || array == &in.rows || array == &in.bias) { continue; }
      array->for_each([&](auto... at) {
        infinite_factor = infinite_factor || !std::isfinite(array->get(at...));
      });
    }
    // Equal weights may add up to a mix of exactly 0 in one type and not in another, as may one weight among logits far apart; and
    // then what is not finite times that is not said.
    for (tensor* array : {&in.query, &in.norm_weight}) {
      if (choices.once_in(4) && !infinite_factor) { put_special_values(*array, choices); }
    }
    constexpr double infinity = std::numeric_limits<double>::infinity();
    // An infinite gate makes an infinity of any sign, or none, of da - D, which may be all rounding; the field cases have one.
    for (const double number : {infinity, -infinity}) { without(number, in.gate); }
    if (infinite_factor) {
      // Whether a gate of 1e-40 times an element is 0 is the type's affair, and decides what an infinity becomes.
      in.gate.for_each([&](auto... at) {
        const double value = std::abs(in.gate.get(at...));
        if (value > 0 && value < std::numeric_limits<float>::min()) { in.gate.set(at..., 1.0); }
      });
    }
    if (!Backend::infinite_logits_are_nan) {
      // A logit of +inf a backend may answer with NaN or by giving it all the weight; a bias of -inf makes none.
      for (tensor* array : {&in.query, &in.norm_weight, &in.bias}) { without(infinity, *array); }
      for (tensor* array : {&in.query, &in.norm_weight}) { without(-infinity, *array); }
    }
    data.loosen(256);
    data.expect();
  }
  backend.forward(data);
  const comparison forward = data.check_forward();
  fuzz_require(forward.ok, forward.text);
  backend.backward(data);
  const comparison backward = data.check_backward();
  fuzz_require(backward.ok, backward.text);
}

template <class T, class Backend>
void fuzz_call(entropy& choices, Backend& backend)
{
  const std::int64_t kind = choices.integer(0, 4);
  if (kind == 0) {
    fuzz_valid_call<T>(choices, backend);
    return;
  }
  if (kind == 4) {
    fuzz_merge<T>(choices, backend);
    return;
  }
  const call_options<T> options = random_options<T>(choices, 100);
  const std::uint64_t seed = choices.bits();
  random_inputs random = random_inputs::seeded(seed);
  call_case<T> data{options, random};
  if (kind == 1) {
    fuzz_spoilt_call<T, mhar::route_problem<T>>(choices, backend,
                                                [&](auto& arena) { return data.forward(arena); });
  }
  else if (kind == 2) {
    fuzz_spoilt_call<T, mhar::route_gradient_problem<T>>(
        choices, backend, [&](auto& arena) { return data.backward(arena); });
  }
  else if (options.num_rows > 0) {
    const placement where = matrix_of(options.extent.num_positions, options.extent.width);
    tensor delta{options.activations, where};
    tensor sum{mhar::element_of<T>::value, where};
    tensor copy{mhar::element_of<T>::value, where};
    delta.for_each([&](auto... at) { delta.set(at..., random.normal()); });
    const int row = static_cast<int>(choices.integer(0, options.num_rows - 1));
    const bool in_place = choices.once_in(2);
    fuzz_spoilt_call<T, mhar::update_problem<T>>(choices, backend, [&](auto& arena) {
      return data.update(row, delta, in_place ? nullptr : &sum, copy, arena);
    });
  }
}

//! One input of the fuzzer.
template <class Backend>
void fuzz_one(entropy& choices, Backend& backend)
{
  switch (choices.integer(0, 3)) {
    case 0: fuzz_call<float>(choices, backend); break;
    case 1: fuzz_call<mhar::bfloat16>(choices, backend); break;
    case 2: fuzz_call<mhar::float16>(choices, backend); break;
    default: fuzz_call<double>(choices, backend); break;
  }
}

}  // namespace mhar_test
