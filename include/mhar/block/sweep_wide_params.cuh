// SPDX-License-Identifier: Apache-2.0
//! Passes of a sweep over wide heads as their kernels read them: rows of T, which is bfloat16
//! or float16, at one stride, 16-byte aligned, no bias.
#pragma once

#include <mhar/block/detail/finish_columns.cuh>
#include <mhar/block/detail/packed_queries.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Pointers start at the pass's own first row, call or slot. Every row has its inverse rms.
template <class T>
struct advance_wide_params
{
  std::int64_t num_positions = 0;
  std::int64_t width = 0;
  int num_heads = 1;
  int pieces = 1;  //!< of a split head that a block has
  int spread = 1;  //!< blocks of a split head
  detail::packed_queries<T> queries;
  int first_call = 0;
  int num_calls = 0;
  const float* null_source = nullptr;  //!< [num_calls, d], where a fresh call starts
  const float* null_logit = nullptr;   //!< [num_calls, H]
  const T* rows = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t position_stride = 0;
  int num_rows = 0;
  const float* inverse_rms = nullptr;  //!< [num_rows, P]
  bool kept = false;
  bool finishes = true;
  void* states = nullptr;  //!< [num_calls][P, d]
  std::int64_t slot_stride = 0;
  float* state_lse = nullptr;  //!< [num_calls][P, H]
  detail::mix_stage<T> stage;  //!< of the first call, when it is finished
  float* lse = nullptr;        //!< [P, H], likewise; may be null

  std::int64_t first_position = 0;  //!< of those that the launch is for, up to last_position
  std::int64_t last_position = 0;
  //! Where a kernel behind this one ends the first call, its mix and lse at those positions: then
  //! stage and lse above are not used.
  float* unfinished = nullptr;
  float* unfinished_lse = nullptr;
};

//! Members are rows top, top - 1, ...; the row pointers start at the top row and step down.
template <class T>
struct gather_wide_params
{
  std::int64_t num_positions = 0;
  std::int64_t width = 0;
  float inverse_width = 0;  //!< 1 / the width of the norm
  int num_heads = 1;
  int pieces = 1;  //!< of a split head that a block has
  int spread = 1;  //!< blocks of a split head
  detail::packed_queries<T> queries;
  const float* gate = nullptr;        //!< [num_calls]
  const float* logit_gate = nullptr;  //!< [num_calls]
  int first_call = 0;
  int num_calls = 0;
  const T* call_gradients = nullptr;
  std::int64_t call_stride = 0;
  std::int64_t call_position_stride = 0;
  const float* lse = nullptr;  //!< [num_calls, P, H]
  const float* dot = nullptr;  //!< [num_calls, P, H]
  const T* rows = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t position_stride = 0;
  int num_rows = 0;
  const float* inverse_rms = nullptr;  //!< of the top row; row m's is m*P before it
  bool kept = false;
  bool finishes = true;
  void* states = nullptr;  //!< [num_rows][P, d]
  std::int64_t slot_stride = 0;
  float* head_sums = nullptr;                     //!< [num_rows][P]
  detail::column_matrix<T, matrix> row_gradient;  //!< of the top row, when it is finished
  float* query_sums = nullptr;  //!< dw at the first call, chunks chunk_stride apart
  std::int64_t chunk_stride = 0;
};

}  // namespace block
MHAR_NAMESPACE_END
