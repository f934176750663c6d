// SPDX-License-Identifier: Apache-2.0
//! Passes of a sweep as the kernels on tensor cores read them: rows of T, which is bfloat16 or
//! float16, at one stride, 16-byte aligned, heads of a few widths, no bias.
#pragma once

#include <mhar/block/detail/call_ending.cuh>
#include <mhar/block/detail/packed_queries.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Pointers start at the pass's own first row, call or slot.
template <class T>
struct advance_tensor_params
{
  std::int64_t num_positions = 0;
  std::int64_t width = 0;
  float inverse_width = 0;  //!< 1 / the width of the norm
  int num_heads = 1;
  float eps = 0;
  detail::packed_queries<T> queries;
  int first_call = 0;
  int num_calls = 0;
  const float* null_source = nullptr;  //!< [num_calls, d], where a fresh call starts
  const float* null_logit = nullptr;   //!< [num_calls, H]
  const T* rows = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t position_stride = 0;
  int num_rows = 0;
  bool has_new_row = false;      //!< the last row's inverse rms is computed and written
  float* inverse_rms = nullptr;  //!< [num_rows, P]
  bool kept = false;
  bool finishes = true;
  void* states = nullptr;  //!< [num_calls][P, d]
  std::int64_t slot_stride = 0;
  float* state_lse = nullptr;  //!< [num_calls][P, H]
  T* y = nullptr;              //!< of the first call, when it is finished
  std::int64_t y_stride = 0;
  void* mix = nullptr;  //!< of the first call, when it is finished, typed as states; may be null
  std::int64_t mix_stride = 0;
  float* lse = nullptr;  //!< [P, H] of the first call, when it is finished; may be null
  //! More follows the first call's mix, when it is finished: then y, mix and lse above are not used.
  bool has_ending = false;
  detail::call_ending<T> ending;

  int positions_per_block = 0;  //!< of advance_tiles
};

//! Members are rows top, top - 1, ...; the row pointers start at the top row and step down.
template <class T>
struct gather_tensor_params
{
  std::int64_t num_positions = 0;
  std::int64_t width = 0;
  float inverse_width = 0;  //!< 1 / the width of the norm
  int num_heads = 1;
  detail::packed_queries<T> queries;
  const float* query = nullptr;       //!< [num_calls, d]
  const float* gate = nullptr;        //!< [num_calls]
  const float* logit_gate = nullptr;  //!< [num_calls]
  int first_call = 0;
  int num_calls = 0;
  const T* call_gradients = nullptr;
  std::int64_t call_stride = 0;
  std::int64_t call_position_stride = 0;
  const T* mix = nullptr;  //!< of the first call, whose D is computed; null when it has one
  std::int64_t mix_position_stride = 0;
  const float* lse = nullptr;  //!< [num_calls, P, H]
  float* dot = nullptr;        //!< [num_calls, P, H]
  const T* rows = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t position_stride = 0;
  int num_rows = 0;
  const float* inverse_rms = nullptr;  //!< of the top row; row m's is m*P before it
  bool kept = false;
  bool finishes = true;
  void* states = nullptr;  //!< [num_rows][P, d]
  std::int64_t slot_stride = 0;
  float* head_sums = nullptr;  //!< [num_rows][P]
  T* row_gradient = nullptr;
  std::int64_t gradient_stride = 0;
  float* query_sums =
      nullptr;  //!< partial sums of dw at the first call; chunks are chunk_stride apart
  std::int64_t chunk_stride = 0;
  //! Rows, and all calls but the first, may be read before the kernels in front have ended.
  bool reads_early = false;
  bool old_states = false;    //!< and kept row gradients with their head sums
  bool first_unread = false;  //!< nothing has been added to the first call's partial sums

  // Of the kernel that keeps rows in shared memory:
  int positions_per_block = 0;
  int num_slots = 0;          //!< positions under way at a time
  int calls_per_segment = 0;  //!< num_calls, unless they come in segments
};

}  // namespace block
MHAR_NAMESPACE_END
