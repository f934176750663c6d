// SPDX-License-Identifier: Apache-2.0
//! The verbs that sweeps are made of: fold, advance, output_gradient, gather, reduce (docs/sweeps.md).
//!
//! A sweep is S calls over one set of rows, call c reading rows [0, num_rows(c)) with num_rows not decreasing. Forward, a pass
//! advances the states of consecutive calls over a range of rows that it reads once; backward, a pass advances the states
//! of consecutive rows over a range of calls. A state is kept normalised: a partial result with its lse (forward), or a
//! partial gradient with its head sum (backward); it is one element narrower than its arithmetic without harm.
//!
//! Indices: calls c, rows n, both counted over the whole sweep. `accumulate` is accumulate_t<T>.
#pragma once

#include <mhar/types/call.hpp>

#include <cstddef>

MHAR_NAMESPACE_BEGIN

//! The largest pass a sweep will run, for sizing a backend's scratch memory.
struct sweep_limits
{
  shape extent;
  int max_members = 1;  //!< calls of a forward pass, rows of a backward pass
  int max_range = 1;    //!< rows of a forward pass, calls of a backward pass
};

//! The parameters of all S calls in the form the sweeps read. Written by fold, in memory of the caller.
//!
//!   query        [S, d]            w = scale * q * g
//!   bias         [S, bias_stride]  of row n at bias[c*bias_stride + n]; null when no call has one
//!   null_source  [S, d]            null when the calls have none
//!   null_logit   [S, H]            the null source's logit, its bias included; null when the calls have none
//!   gate         [S]               alpha
//!   logit_gate   [S]               alpha, or 0 for a call that has one source in all: its weights are 1 whatever the logits
//!   packed                         a backend's own form of the above, Backend::packed_bytes long; may be null, and is not
//!                                  read where it is off a 16-byte boundary
template <class Accumulate>
struct folded_sites
{
  Accumulate* query = nullptr;
  Accumulate* bias = nullptr;
  std::int64_t bias_stride = 0;
  Accumulate* null_source = nullptr;
  Accumulate* null_logit = nullptr;
  Accumulate* gate = nullptr;
  Accumulate* logit_gate = nullptr;
  void* packed = nullptr;
  key_rounding rounding = key_rounding::none;  //!< none or storage, the same for all calls
};

//! fold: prepares the parameters of S calls for a sweep; once per pass of the model, since parameters do not change within one.
//! Calls must agree on eps, on rounding and on having a null source. Entries of an absent bias are written as 0.
template <class T>
struct fold_problem
{
  shape extent;
  int num_calls = 0;
  const site_parameters* sites = nullptr;  //!< [S], host
  const const_array* gates = nullptr;      //!< [S], host; null when no call is gated
  const int* num_sources =
      nullptr;       //!< [S], host: sources of each call in all, null and private row included
  int num_rows = 0;  //!< bias entries per call without the null's
  folded_sites<accumulate_t<T>> folded;
};

//! Whether a pass starts its states or continues kept ones.
enum class pass_start : std::uint8_t
{
  fresh,  //!< from nothing, or from the null source
  kept    //!< from the slots
};

//! Whether the first member of a pass is finished by it, or kept like the others.
enum class pass_end : std::uint8_t
{
  finish_first,
  keep_all
};

//! Forward states: member j of a pass has slot first_slot + j, updated in place. A finished first member's slot is read when
//! kept and never written, so it need not exist when fresh.
//!
//!   mix  [slots][P, d]  normalised, element T or the accumulation type
//!   lse  [slots][P, H]
template <class Accumulate>
struct call_states
{
  void* mix = nullptr;
  element type = element::float32;
  std::int64_t slot_stride =
      0;  //!< elements between the mixes of two slots; position_stride is the width
  Accumulate* lse = nullptr;  //!< slots are P*H apart
  int first_slot = 0;
};

//! advance: one forward pass. Reads rows [first_row, first_row + num_rows) once for calls [first_call, first_call + num_calls).
//!
//! The last `num_new_rows` rows of the range have no inverse rms yet: it is computed and written. num_rows may be 0 (a kept
//! first call is finished without new rows). The first call may own a private last row, read for that call only.
template <class T>
struct advance_problem
{
  shape extent;
  double eps = 1e-6;
  folded_sites<accumulate_t<T>> sites;
  int first_call = 0;
  int num_calls = 0;
  const_rows<T> rows;
  int first_row = 0;
  int num_rows = 0;
  int num_new_rows = 0;
  accumulate_t<T>* inverse_rms = nullptr;  //!< [rows, P] of the whole sweep
  pass_start start = pass_start::fresh;
  pass_end end = pass_end::finish_first;
  call_states<accumulate_t<T>> states;

  // Of the first call, when it is finished:
  const T* private_row = nullptr;  //!< [P, d] or null; its bias is entry private_bias of the call's
  std::int64_t private_stride = 0;
  int private_bias = 0;
  accumulate_t<T>* private_inverse_rms = nullptr;  //!< [P], written; required with a private row
  output_stage stage;
  route_outputs<T>
      outputs;  //!< y, combined, mix, lse; `mix` may be the call's own slot; no weights, no inverse_rms
};

//! Partial sums of the parameters' gradients, one set per chunk of positions, so that they are added in one fixed order
//! whatever the number of threads. Zeroed when a backward begins; every verb adds to them.
//!
//!   query        [num_chunks, S, d]            of w, the folded query; null when not wanted
//!   bias         [num_chunks, S, bias_stride + 1]  entry 0 is the null source's, entry 1+n row n's; null when not wanted
//!   null_source  [num_chunks, S, d]            null when not wanted
//!   gate         [num_chunks, S]               null when not wanted
//!   output_norm  [num_chunks, S, d]            null when not wanted
template <class Accumulate>
struct gradient_partials
{
  Accumulate* query = nullptr;
  Accumulate* bias = nullptr;
  Accumulate* null_source = nullptr;
  Accumulate* gate = nullptr;
  Accumulate* output_norm = nullptr;
  std::int64_t bias_stride = 0;
  int num_chunks = 0;
  int num_calls = 0;
};

//! output_gradient: the backward of what follows a call's mix, before any row is read:
//! do from dy through the output norm,  D_h = <do_h, mix_h>,  and the parts of dalpha, d(output norm weight), dnull and of the null
//! source's share of dw and dbias.
//!
//!   output_gradient    [P, d]            dy
//!   combined_gradient  [P, d] or absent  upstream on o itself
//!   combined           [P, d]            o; required with an output norm
//!   mix                [P, d]
//!   lse                [P, H]            of this call; read when there is a null source
//!   call_gradient      [P, d]            do, written as element T; may be output_gradient exactly
//!   partial_gradient   [P, d] or absent  a copy of do for the partial's producer
//!   dot                [P, H]            D, written
template <class T>
struct output_gradient_problem
{
  shape extent;
  double eps = 1e-6;
  int call = 0;
  folded_sites<accumulate_t<T>> sites;
  output_stage stage;
  const_matrix output_gradient;
  const_matrix combined_gradient;
  const_matrix combined;
  const_matrix mix;
  const accumulate_t<T>* lse = nullptr;
  matrix call_gradient;
  matrix partial_gradient;
  accumulate_t<T>* dot = nullptr;
  gradient_partials<accumulate_t<T>> partials;
};

//! Backward states: member j of a pass has slot first_slot + j, updated in place.
//!
//!   gradient  [slots][P, d]  A + r*B, element T or the accumulation type
//!   head_sum  [slots][P]     c = sum over heads and calls of dl*u
template <class Accumulate>
struct row_states
{
  void* gradient = nullptr;
  element type = element::float32;
  std::int64_t slot_stride = 0;
  Accumulate* head_sum = nullptr;  //!< slots are P apart
  int first_slot = 0;
};

//! gather: one backward pass. Reads the gradients of calls [first_call, first_call + num_calls) once for rows top_row, top_row - 1,
//! ..., top_row - num_rows + 1 (member j of the states is row top_row - j), and adds every (call, row) pair's part of dw and dbias.
//! When the top row is finished, ds = A + r B - (r^2/d) c s is stored or accumulated into row_gradient.
//!
//! The first `num_new_calls` calls of the range have no D yet: it is computed from `mixes` and written to `dot`.
//! num_calls may be 0 (a kept top row is finished without new calls).
template <class T>
struct gather_problem
{
  shape extent;
  folded_sites<accumulate_t<T>> sites;
  const_rows<T> rows;
  const accumulate_t<T>* inverse_rms = nullptr;  //!< [rows, P] of the whole sweep
  int top_row = 0;
  int num_rows = 0;
  const_rows<T> call_gradients;  //!< do of call c is row c
  int first_call = 0;
  int num_calls = 0;
  int num_new_calls = 0;
  const_rows<T> mixes;                   //!< mix of call c is row c; read for new calls only
  const accumulate_t<T>* lse = nullptr;  //!< [S, P, H]
  accumulate_t<T>* dot = nullptr;        //!< [S, P, H]
  int bias_entry = 0;  //!< bias entry of row n is bias_entry + n; a private row has its own
  pass_start start = pass_start::fresh;
  pass_end end = pass_end::finish_first;
  row_states<accumulate_t<T>> states;
  matrix row_gradient;  //!< [P, d] of the top row
  gradient_partials<accumulate_t<T>> partials;

  //! @name What a sweep knows of the passes in front of this one; nothing has to be known
  //! @{
  //! Calls at the range's beginning that no pass has read; of those without a D all partial sums are
  //! zero. The others were read by passes in front, and rows and lse were complete before the last
  //! of these. Negative where that is not known.
  int num_unread_calls = -1;
  //! The states were written in front of the last pass.
  bool has_old_states = false;
  //! @}
};

//! reduce: adds the chunks of the partial sums in order and writes the gradients of the sites' parameters.
//! Consecutive `queries_per_site` calls are the queries of one site: they share everything but the query, whose gradient is
//! [queries_per_site, d]; the other gradients are sums over them.
template <class T>
struct reduce_problem
{
  shape extent;
  int num_sites = 0;
  int queries_per_site = 1;
  const site_parameters* sites = nullptr;     //!< [num_sites], host; query is [queries_per_site, d]
  const site_gradients* gradients = nullptr;  //!< [num_sites], host
  const int* num_bias =
      nullptr;  //!< [num_sites], host: entries of each site's bias, the null's included
  gradient_partials<accumulate_t<T>> partials;
};

MHAR_NAMESPACE_END
