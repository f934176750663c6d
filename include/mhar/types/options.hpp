// SPDX-License-Identifier: Apache-2.0
//! What a caller may ask of one routing site: its parameters, its norm, and what becomes of the mix.
#pragma once

#include <mhar/types/view.hpp>

MHAR_NAMESPACE_BEGIN

//! How a key is rounded before it meets the query; users compare against different references.
//! The backward treats rounding as the identity.
enum class key_rounding : std::uint8_t
{
  none,     //!< u = scale * r * <q*g, s>: the folded query in the accumulation type; most accurate
  storage,  //!< u = scale * <q*g, round(s*r)>: rounded to the rows' type, as the paper's kernel does
  storage_twice  //!< u = scale * <q, round(g * round(s*r))>: rounded again, as a framework's RMSNorm does; one call only
};

//! The parameters of one routing site (one pseudo-query). All are read in their own type and used in the accumulation type.
//!
//!   query        [d]                     q; zeros give the uniform average
//!   norm_weight  [d], or absent for 1    g
//!   bias         [num_sources] or absent added to the logits; index 0 is the null source when there is one
//!   null_source  [d] or absent           a learnable row that stands at every position, before row 0
struct site_parameters
{
  const_array query;
  const_array norm_weight;
  const_array bias;
  const_array null_source;
  double scale = 1.0;
  double eps = 1e-6;  //!< inside the root of the rows' inverse rms; > 0
  key_rounding rounding = key_rounding::none;
};

//! Whether an output RMSNorm follows.
enum class output_norm : std::uint8_t
{
  none,
  rms
};

//! What becomes of a mix:  o = partial + alpha * mix,  y = o or RMSNorm(o; weight, eps).
//!
//!   partial      [P, d] or absent  added to the gated mix; alpha == 0 gives partial itself: every bit where o has its type
//!                                  (a NaN stays one), else rounded to o's (a double as fp32, unless the rows are double)
//!   gate         [1] or absent     alpha, read on the device; absent means 1
//!   norm_weight  [d] or absent     of the output norm; absent means 1
struct output_stage
{
  const_matrix partial;
  const_array gate;
  output_norm norm = output_norm::none;
  const_array norm_weight;
  double norm_eps = 1e-6;
};

//! Gradients of a site's parameters, each stored or accumulated in its own type; an absent one is not computed.
//! Shapes as in site_parameters and output_stage.
struct site_gradients
{
  array query;
  array norm_weight;
  array bias;
  array null_source;
  array gate;
  array output_norm_weight;
};

MHAR_NAMESPACE_END
