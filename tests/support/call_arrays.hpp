// SPDX-License-Identifier: Apache-2.0
//! The arrays of one test call: random inputs, and poisoned outputs with guards around them.
#pragma once

#include "support/call_options.hpp"
#include "support/tensor.hpp"

#include <cmath>
#include <cstring>
#include <vector>

namespace mhar_test {

//! Rows in one of the layouts; listed ones lie in reverse order.
inline placement place_rows(row_layout layout, std::int64_t num_rows, const mhar::shape& extent,
                            std::int64_t gap)
{
  const std::int64_t pitch = extent.width + gap;
  const bool token_major = layout == row_layout::token_major;
  placement where{{}, extent.num_positions, token_major ? num_rows * pitch : pitch, extent.width};
  for (std::int64_t n = 0; n < num_rows; ++n) {
    const std::int64_t slot = layout == row_layout::listed ? num_rows - 1 - n : n;
    where.row_start.push_back(slot * (token_major ? pitch : extent.num_positions * pitch + gap));
  }
  return where;
}

//! Everything that a backend reads.
template <class T>
struct call_inputs
{
  tensor rows;
  tensor query;
  tensor norm_weight;
  tensor bias;
  tensor null_source;
  tensor partial;
  tensor gate;
  tensor output_norm_weight;

  tensor output_gradient;
  tensor combined_gradient;
  tensor lse;
  tensor inverse_rms;
  tensor mix;
  tensor combined;

  call_inputs(const call_options<T>& o, random_inputs& random)
  {
    const std::int64_t width = o.extent.width;
    const placement matrix = matrix_of(o.extent.num_positions, width, o.gap);
    const auto normal = [&](mhar::element type, const placement& where, double mean, double scale) {
      tensor values{type, where, o.offset};
      values.for_each([&](auto... at) { values.set(at..., mean + random.normal(scale)); });
      return values;
    };

    rows = {mhar::element_of<T>::value, place_rows(o.rows, o.num_rows, o.extent, o.gap), o.offset};
    std::vector<double> row_scale;
    for (int n = 0; n < o.num_rows; ++n) { row_scale.push_back(std::exp(random.uniform())); }
    rows.for_each([&](std::int64_t row, std::int64_t position, std::int64_t column) {
      rows.set(row, position, column, random.normal(row_scale[static_cast<std::size_t>(row)]));
    });

    // A normalised row has elements of size 1, so this spreads scale * <q_h, row_h> as asked.
    const double head_width = static_cast<double>(o.extent.head_width());
    query = normal(o.parameters, flat(width), 0, o.spread / (o.scale * std::sqrt(head_width)));
    if (o.norm_weight) { norm_weight = normal(o.parameters, flat(width), 1, 0.1); }
    if (o.bias) { bias = normal(o.parameters, flat(o.num_sources()), 0, 1); }
    if (o.null_source) { null_source = normal(o.parameters, flat(width), 0, 1); }
    if (o.partial) { partial = normal(o.activations, matrix, 0, 1); }
    if (o.gate) { gate = normal(o.parameters, flat(1), 0.7, 0.1); }
    if (o.norm == mhar::output_norm::rms && o.output_norm_weight) {
      output_norm_weight = normal(o.parameters, flat(width), 1, 0.1);
    }
    output_gradient = normal(o.activations, matrix, 0, 1);
    if (o.combined_upstream) { combined_gradient = normal(o.activations, matrix, 0, 1); }
  }

  template <class Visitor>
  void for_each(Visitor visitor)
  {
    for (tensor* const array :
         {&rows, &query, &norm_weight, &bias, &null_source, &partial, &gate, &output_norm_weight,
          &output_gradient, &combined_gradient, &lse, &inverse_rms, &mix, &combined}) {
      visitor(*array);
    }
  }

  //! Keeps the bytes of every input, so that a write to one shows.
  void remember()
  {
    memory_.clear();
    for_each([&](tensor& array) {
      memory_.emplace_back(array.storage(), array.storage() + array.storage_bytes());
    });
  }
  [[nodiscard]] bool unchanged()
  {
    bool same = true;
    std::size_t index = 0;
    for_each([&](tensor& array) {
      const std::vector<unsigned char>& before = memory_[index++];
      same = same && std::equal(before.begin(), before.end(), array.storage());
    });
    return same;
  }

private:
  std::vector<std::vector<unsigned char>> memory_;
};

//! Whether results are kept in the types that the options ask for, or in double.
enum class precision
{
  stored,
  exact
};

//! Everything that a backend writes. An array that is made absent, `results.y = {}`, is not wanted.
template <class T>
struct call_results
{
  tensor y;
  tensor combined;
  tensor mix;
  tensor lse;
  tensor inverse_rms;
  tensor weights;

  tensor row_gradients;
  tensor partial_gradient;
  tensor query;
  tensor norm_weight;
  tensor bias;
  tensor null_source;
  tensor gate;
  tensor output_norm_weight;

  call_results(const call_options<T>& o, precision kept)
  {
    const auto as = [&](mhar::element type) {
      return kept == precision::exact ? mhar::element::float64 : type;
    };
    const mhar::shape& extent = o.extent;
    const std::int64_t positions = extent.num_positions;
    const std::int64_t heads = extent.num_heads;
    const placement matrix = matrix_of(positions, extent.width, o.gap);
    const auto statistics = [&](const placement& where) {
      return tensor{mhar::element_of<mhar::accumulate_t<T>>::value, where, o.offset};
    };

    y = {as(o.outputs), matrix, o.offset};
    combined = {as(o.states), matrix, o.offset};
    mix = {as(o.states), matrix, o.offset};
    lse = statistics(matrix_of(positions, heads));
    inverse_rms = statistics(matrix_of(o.num_rows, positions));
    weights = statistics(matrix_of(positions * heads, o.num_sources()));

    const mhar::element parameter = as(o.parameter_gradients);
    row_gradients = {as(o.row_gradient_type),
                     place_rows(o.row_gradients, o.num_rows, extent, o.gap), o.offset};
    partial_gradient = {as(o.outputs), matrix, o.offset};
    query = {parameter, flat(extent.width), o.offset};
    if (o.norm_weight) { norm_weight = {parameter, flat(extent.width), o.offset}; }
    if (o.bias) { bias = {parameter, flat(o.num_sources()), o.offset}; }
    if (o.null_source) { null_source = {parameter, flat(extent.width), o.offset}; }
    if (o.gate) { gate = {parameter, flat(1), o.offset}; }
    if (o.norm == mhar::output_norm::rms && o.output_norm_weight) {
      output_norm_weight = {parameter, flat(extent.width), o.offset};
    }
  }

  //! Calls visitor(name, array) for the results of the forward.
  template <class Visitor>
  void for_each_forward(Visitor visitor)
  {
    visitor("y", y);
    visitor("combined", combined);
    visitor("mix", mix);
    visitor("lse", lse);
    visitor("inverse_rms", inverse_rms);
    visitor("weights", weights);
  }
  template <class Visitor>
  void for_each_gradient(Visitor visitor)
  {
    visitor("row_gradients", row_gradients);
    visitor("partial_gradient", partial_gradient);
    visitor("query", query);
    visitor("norm_weight", norm_weight);
    visitor("bias", bias);
    visitor("null_source", null_source);
    visitor("gate", gate);
    visitor("output_norm_weight", output_norm_weight);
  }
};

}  // namespace mhar_test
