// SPDX-License-Identifier: Apache-2.0
//! What the backward of a routing call is told at launch: the problem as a kernel reads it, who
//! owns which column, and where the scratch memory of a block is.
#pragma once

#include <mhar/block/row_pointers.cuh>
#include <mhar/types/options.hpp>
#include <mhar/types/shape.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Who owns which columns. A head has `chunks_per_head` chunks of up to 16 bytes of row;
//! `lanes_per_head` consecutive threads share them, lane l owning chunks l, l + lanes_per_head, ...
//! A thread serves one head at a time, and goes round when there are more heads than fit. It
//! depends on the shape and the element size alone, and with it the order of every sum over the
//! width.
struct gradient_map
{
  int head_width = 0;
  int chunks_per_head = 0;
  int lanes_per_head = 0;
  int chunks_per_lane = 0;
  int heads_at_once = 0;
  int num_rounds = 0;
  int num_threads = 0;  //!< of a block, a multiple of 32
  int group = 0;  //!< lanes whose sums meet in a butterfly: 2^group_shift, divides lanes_per_head
  int group_shift = 0;
  int groups_per_head = 0;
  int num_groups = 0;
  int finish_lanes = 0;  //!< lanes of a warp that add the groups of one head: 2^finish_shift
  int finish_shift = 0;
  int segment = 0;  //!< lanes of a warp that finish one row: 2^segment_shift
  int segment_shift = 0;
  int rows_shift = 0;  //!< a warp finishes 2^rows_shift rows at a time
};

//! The gradients of the rows, at base + n*row_bytes or list[n]. A null one is not wanted.
template <int Capacity>
struct gradient_pointers
{
  unsigned char* base = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t position_stride = 0;  //!< elements
  element type = element::float32;
  update mode = update::store;
  bool listed = false;
  unsigned char* list[static_cast<std::size_t>(Capacity)] = {};

  //! Row n, position 0.
  [[nodiscard]] __device__ __forceinline__ unsigned char* row(int n) const
  {
    if (listed) { return list[n]; }
    return base == nullptr ? nullptr : base + n * row_bytes;
  }
};

//! Partial sums of the gradients of parameters, one set per chunk of positions; null when not
//! wanted.
template <class Accumulate>
struct call_partials
{
  Accumulate* query = nullptr;        //!< [num_chunks, d]  of the folded query
  Accumulate* null_source = nullptr;  //!< [num_chunks, d]
  Accumulate* output_norm = nullptr;  //!< [num_chunks, d]
  Accumulate* bias = nullptr;         //!< [num_chunks, num_sources]
  Accumulate* gate = nullptr;         //!< [num_chunks]
  int num_chunks = 0;
};

//! Arrays of one value per owned column in a block's scratch memory; the last three only where
//! registers do not hold them.
enum class column_array
{
  null_source,
  output_norm,
  weight,
  gradient,
  weight_sum
};

//! The matrices that a position starts from. With a ring they are copied a position ahead, as are
//! lse and inverse rms.
enum class call_input
{
  output_gradient,
  combined_gradient,
  mix,
  combined
};

//! Offsets of a block's scratch memory, in accumulator values; what a call does not need is empty.
//!
//!   parts        [rows_per_stage][4][num_groups]  sums of a row by groups
//!   position     [2][num_groups]                  sums of a position by groups
//!   factors      [rows_per_stage][num_heads][2]   of do and of w, per row and head
//!   slopes       [rows_per_stage]                 of the row itself
//!   inverses     [rows_per_stage]                 inverse rms, with rounded keys
//!   key_factors  [rows_per_stage][num_heads]      of the rounded key
//!   logits       [rows_per_stage][num_heads]      when lse or mix is recomputed
//!   states       [3][num_heads]                   running maximum, sum, rescaling; then lse
//!   null_heads   [4][num_heads]                   score, logit, weight, sum of dl of the null
//!   statistics   [2][num_heads + num_rows]        lse, inverse rms: this position, the next
//!   bias         [num_sources]
//!   columns      one array per column_array, of a value for every owned column
struct gradient_arena
{
  int parts = 0;
  int position = 0;
  int factors = 0;
  int slopes = 0;
  int inverses = 0;
  int key_factors = 0;
  int logits = 0;
  int states = 0;
  int null_heads = 0;
  int statistics = 0;
  int scalars = 0;
  int bias = 0;
  int columns[5] = {};
  int size = 0;
};

//! What the backward of one call needs. T: element of the rows; Capacity: the longest list of row
//! pointers.
template <class T, int Capacity>
struct route_gradient_params
{
  using accumulate = accumulate_t<T>;

  shape extent;
  int num_rows = 0;
  int num_null = 0;
  row_pointers<T, Capacity> rows;
  gradient_pointers<Capacity> row_gradients;

  const_array query;
  const_array norm_weight;
  const_array bias;
  const_array null_source;
  accumulate scale = 1;
  accumulate eps = 0;
  key_rounding rounding = key_rounding::none;

  const_matrix partial;
  const_array gate;
  output_norm norm = output_norm::none;
  const_array output_weight;
  accumulate output_eps = 0;

  const_matrix output_gradient;
  const_matrix combined_gradient;
  const accumulate* lse = nullptr;
  const accumulate* inverse_rms = nullptr;
  const_matrix mix;
  const_matrix combined;
  matrix partial_gradient;
  call_partials<accumulate> partials;

  gradient_map map;
  gradient_arena arena;
  accumulate* arena_memory =
      nullptr;  //!< scratch of all blocks in global memory, or null for shared memory
  int num_stages = 1;
  int rows_per_stage = 1;
  int slot_bytes = 0;          //!< of one row in the ring, its old gradient included
  int old_gradient_bytes = 0;  //!< of that, the old gradient's part
  int input_offsets[4] =
      {};               //!< bytes from the ring's start to a position of the matrices in call_input
  int input_bytes = 0;  //!< of all of them, in front of the rows
  int ring_bytes = 0;   //!< in front of the arena
};

}  // namespace block
MHAR_NAMESPACE_END
