// SPDX-License-Identifier: Apache-2.0
//! One self-contained routing call, forward and backward: the problems a user fills (operator: docs/operator.md).
//!
//! T is the element type of the rows; arithmetic is done in accumulate_t<T>, which is also the type of lse, inverse rms and
//! weights. A source is the null source, when the site has one, or a row; num_sources = num_rows + (has null), at least 1.
#pragma once

#include <mhar/types/options.hpp>
#include <mhar/types/shape.hpp>

MHAR_NAMESPACE_BEGIN

//! What a forward call writes; an absent output is not written. All are stored (update::accumulate is refused).
//!
//!   y            [P, d]               the call's output
//!   combined     [P, d]               o, before the output norm: wanted when a backward will follow one
//!   mix          [P, d]               before gate and partial: wanted when a backward will follow and o is not the mix
//!   lse          [P, H]               natural log-sum-exp of the logits
//!   inverse_rms  [num_rows, P]        of every row (the null source excluded)
//!   weights      [P, H, num_sources]  the depth weights, for analysis
template <class T>
struct route_outputs
{
  matrix y;
  matrix combined;
  matrix mix;
  accumulate_t<T>* lse = nullptr;
  accumulate_t<T>* inverse_rms = nullptr;
  accumulate_t<T>* weights = nullptr;
};

//! Forward of one call.
template <class T>
struct route_problem
{
  shape extent;
  int num_rows = 0;
  const_rows<T> rows;  //!< [num_rows][P, d]
  site_parameters site;
  output_stage stage;
  route_outputs<T> outputs;
};

//! Backward of one call.
//!
//! Upstream:
//!   output_gradient    [P, d]            dy; required
//!   combined_gradient  [P, d] or absent  added to the gradient of o, after the output norm's backward
//! Saved by the forward; an absent one is recomputed from the rows (docs say what that costs):
//!   lse [P, H],  mix [P, d],  combined [P, d] (used with an output norm only),  inverse_rms [num_rows, P]
//! Wanted (an absent one is not computed; to want none is no error):
//!   row_gradients      [num_rows][P, d]  ds
//!   partial_gradient   [P, d]            equals do
//!   gradients                            of the parameters
template <class T>
struct route_gradient_problem
{
  shape extent;
  int num_rows = 0;
  const_rows<T> rows;
  site_parameters site;
  output_stage stage;

  const_matrix output_gradient;
  const_matrix combined_gradient;

  const accumulate_t<T>* lse = nullptr;
  const accumulate_t<T>* inverse_rms = nullptr;
  const_matrix mix;
  const_matrix combined;

  gradient_rows row_gradients;
  matrix partial_gradient;
  site_gradients gradients;
};

//! Merge of partial results over disjoint sets of sources (pipeline or sequence splits, a kept history):
//! lse = log sum_i exp(lse_i),  mix = sum_i exp(lse_i - lse) mix_i, per position and head.
//!
//!   parts       [num_parts][P, d]  mixes of the parts
//!   part_lse    [num_parts][P, H]  part i starts at part_lse + i*part_lse_stride
//!   mix         [P, d]             may be one of the parts exactly (same pointer, strides and type)
//!   lse         [P, H]             may be one of the parts' exactly
//! A part whose lse is -inf has no weight; when every part's is, mix is 0 and lse -inf.
template <class T>
struct merge_problem
{
  shape extent;
  int num_parts = 0;
  const_rows<T> parts;
  const accumulate_t<T>* part_lse = nullptr;
  std::int64_t part_lse_stride = 0;
  matrix mix;
  accumulate_t<T>* lse = nullptr;
};

MHAR_NAMESPACE_END
