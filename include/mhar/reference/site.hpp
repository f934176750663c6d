// SPDX-License-Identifier: Apache-2.0
//! The parameters of one routing site and of what follows its mix, as numbers.
#pragma once

#include <mhar/reference/numbers.hpp>
#include <mhar/types/options.hpp>
#include <mhar/types/shape.hpp>

MHAR_NAMESPACE_BEGIN
namespace reference {

//! Symbols in brackets are those of docs/operator.md.
struct site
{
  std::int64_t width = 0;       //!< d
  std::int64_t head_width = 0;  //!< K
  std::int64_t norm_width = 0;  //!< d of the norm
  int num_heads = 1;            //!< H
  int num_sources = 0;          //!< N, the null source included
  int num_null = 0;             //!< 1 when source 0 is the null source

  vector query;        //!< [q]
  vector norm_weight;  //!< [g]
  vector folded;       //!< [w = q*g]
  vector bias;         //!< [b], one per source
  vector null_source;  //!< empty when there is none
  double scale = 1;
  double eps = 0;
  key_rounding rounding = key_rounding::none;

  double gate = 1;  //!< [alpha]
  output_norm norm = output_norm::none;
  vector output_weight;  //!< [og]
  double output_eps = 0;
};

inline site read_site(const shape& extent, int num_rows, const site_parameters& parameters,
                      const output_stage& stage)
{
  site s;
  s.width = extent.width;
  s.head_width = extent.head_width();
  s.norm_width = extent.full_width();
  s.num_heads = extent.num_heads;
  s.num_null = parameters.null_source ? 1 : 0;
  s.num_sources = num_rows + s.num_null;

  s.query = read(parameters.query, s.width, 0);
  s.norm_weight = read(parameters.norm_weight, s.width, 1);
  s.folded = s.query * s.norm_weight;
  s.bias = read(parameters.bias, s.num_sources, 0);
  if (parameters.null_source) { s.null_source = read(parameters.null_source, s.width, 0); }
  s.scale = parameters.scale;
  s.eps = parameters.eps;
  s.rounding = parameters.rounding;

  s.gate = read(stage.gate, 1, 1)(0);
  s.norm = stage.norm;
  s.output_weight = read(stage.norm_weight, s.width, 1);
  s.output_eps = stage.norm_eps;
  return s;
}

//! The sources of one position, [N, d]: the null source, when there is one, then the rows.
template <class T>
table read_sources(const site& s, const const_rows<T>& rows, std::int64_t position)
{
  table sources(s.num_sources, s.width);
  if (s.num_null == 1) { sources.row(0) = s.null_source; }
  for (int n = s.num_null; n < s.num_sources; ++n) {
    const T* const row = rows.at(n - s.num_null, position);
    sources.row(n) = read(row, element_of<T>::value, 0, s.width);
  }
  return sources;
}

}  // namespace reference
MHAR_NAMESPACE_END
