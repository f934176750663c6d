// SPDX-License-Identifier: Apache-2.0
//! What one test call looks like: every option of the operator, and every way its arrays may lie in
//! memory.
#pragma once

#include "support/random.hpp"

#include <mhar/types/options.hpp>
#include <mhar/types/shape.hpp>

#include <cstdint>
#include <sstream>
#include <string>

namespace mhar_test {

//! How the rows of a call lie in memory.
enum class row_layout
{
  source_major,  //!< [N, P, d]
  token_major,   //!< [P, N, d]
  listed         //!< one pointer per row, in an order that is not theirs
};

//! T is the element type of the rows. Everything that can be absent is off, everything saved is
//! given.
template <class T>
struct call_options
{
  mhar::shape extent{5, 24, 3, 0};
  int num_rows = 4;

  bool null_source = false;
  bool norm_weight = true;
  bool bias = false;
  bool partial = false;
  bool gate = false;
  mhar::output_norm norm = mhar::output_norm::none;
  bool output_norm_weight = true;  //!< when there is an output norm
  mhar::key_rounding rounding = mhar::key_rounding::none;
  double scale = 1;
  double eps = 1e-6;
  double spread = 2;  //!< standard deviation of the logits; 0 makes the weights uniform

  row_layout rows = row_layout::source_major;
  row_layout row_gradients = row_layout::source_major;
  std::int64_t gap = 0;     //!< elements between the positions of every matrix
  std::int64_t offset = 0;  //!< elements between a 64-byte boundary and every array

  mhar::element parameters = mhar::element::float32;
  mhar::element activations = mhar::element_of<T>::value;  //!< partial and the upstream gradients
  mhar::element outputs = mhar::element_of<T>::value;      //!< y and the partial's gradient
  mhar::element states = mhar::element_of<T>::value;       //!< mix and combined
  mhar::element row_gradient_type = mhar::element_of<T>::value;
  mhar::element parameter_gradients = mhar::element::float32;
  mhar::update mode = mhar::update::store;  //!< of every gradient

  bool combined_upstream = false;  //!< an upstream gradient on o besides that of y
  bool given_lse = true;
  bool given_inverse_rms = true;
  bool given_mix = true;
  bool given_combined = true;  //!< with an output norm only

  [[nodiscard]] int num_sources() const { return num_rows + (null_source ? 1 : 0); }
};

//! The options that differ from call to call, for a failure's message.
template <class T>
std::string describe(const call_options<T>& o)
{
  static constexpr const char* types[] = {"bfloat16", "float16", "float32", "float64"};
  const auto name = [](mhar::element type) { return types[static_cast<int>(type)]; };
  std::ostringstream text;
  text << "call of " << name(mhar::element_of<T>::value) << " rows: P=" << o.extent.num_positions
       << " d=" << o.extent.width << " H=" << o.extent.num_heads << " rows=" << o.num_rows
       << " null=" << o.null_source << " norm_weight=" << o.norm_weight << " bias=" << o.bias
       << " partial=" << o.partial << " gate=" << o.gate
       << " output_norm=" << static_cast<int>(o.norm) << '/' << o.output_norm_weight
       << " rounding=" << static_cast<int>(o.rounding) << " scale=" << o.scale << " eps=" << o.eps
       << " layout=" << static_cast<int>(o.rows) << '/' << static_cast<int>(o.row_gradients)
       << " gap=" << o.gap << " offset=" << o.offset << " parameters=" << name(o.parameters)
       << " activations=" << name(o.activations) << " outputs=" << name(o.outputs)
       << " states=" << name(o.states) << " row_gradients=" << name(o.row_gradient_type)
       << " parameter_gradients=" << name(o.parameter_gradients)
       << " mode=" << static_cast<int>(o.mode) << " combined_upstream=" << o.combined_upstream
       << " given(lse,rms,mix,combined)=" << o.given_lse << o.given_inverse_rms << o.given_mix
       << o.given_combined;
  return text.str();
}

//! A call with every option drawn at random: about `size` elements per row, all element types, all
//! layouts.
template <class T, class Random>
call_options<T> random_options(Random& random, std::int64_t size = 400)
{
  static constexpr int head_counts[] = {1, 1, 2, 3, 4, 5, 8};
  static constexpr mhar::element types[] = {mhar::element::bfloat16, mhar::element::float16,
                                            mhar::element::float32, mhar::element::float64};
  const auto coin = [&] { return random.integer(0, 1) == 1; };
  const auto any_type = [&] { return types[random.integer(0, 3)]; };
  const auto any_layout = [&] { return static_cast<row_layout>(random.integer(0, 2)); };

  call_options<T> o;
  o.extent.num_heads = head_counts[random.integer(0, 6)];
  // Half of the widths suit 16-byte accesses; the others are anything.
  const std::int64_t unit = coin() ? 8 : 1;
  const std::int64_t largest = std::max<std::int64_t>(1, size / (o.extent.num_heads * unit * 3));
  o.extent.width = o.extent.num_heads * unit * random.integer(1, largest);
  o.extent.num_positions = random.integer(1, std::max<std::int64_t>(1, size / o.extent.width));

  o.null_source = coin();
  o.num_rows = static_cast<int>(random.integer(o.null_source ? 0 : 1, 9));
  o.norm_weight = coin();
  o.bias = coin();
  o.partial = coin();
  o.gate = coin();
  o.norm = coin() ? mhar::output_norm::rms : mhar::output_norm::none;
  o.output_norm_weight = coin();
  o.rounding = static_cast<mhar::key_rounding>(random.integer(0, 2));
  o.scale = coin() ? 1.0 : 0.7;
  o.eps = coin() ? 1e-6 : 1e-5;

  o.rows = any_layout();
  o.row_gradients = any_layout();
  o.gap = coin() ? 0 : random.integer(1, 9);
  o.offset = coin() ? 0 : random.integer(1, 15);

  o.parameters = any_type();
  if (coin()) { o.activations = any_type(); }
  if (coin()) { o.outputs = any_type(); }
  if (coin()) { o.states = any_type(); }
  if (coin()) { o.row_gradient_type = any_type(); }
  o.parameter_gradients = any_type();
  o.mode = coin() ? mhar::update::store : mhar::update::accumulate;

  o.combined_upstream = coin();
  o.given_lse = coin();
  o.given_inverse_rms = coin();
  o.given_mix = coin();
  o.given_combined = coin();
  return o;
}

}  // namespace mhar_test
