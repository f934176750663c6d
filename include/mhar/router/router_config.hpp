// SPDX-License-Identifier: Apache-2.0
//! What a depth_router is built from: the plan, the sites, and who keeps what. Values only; nothing
//! here launches work.
#pragma once

#include <mhar/router/depth_plan.hpp>
#include <mhar/types/options.hpp>

#include <cstddef>
#include <vector>

MHAR_NAMESPACE_BEGIN

//! One routing site: its parameters and what becomes of its mixes. The stage's partial differs from
//! call to call and is given with the call, so it is absent here.
struct router_site
{
  site_parameters parameters;
  output_stage stage;
};

//! Whether a backward may follow. Inference keeps the inverse rms of the rows and nothing else from
//! call to call.
enum class router_use : std::uint8_t
{
  training,
  inference
};

//! Where the source rows live.
enum class row_home : std::uint8_t
{
  block,    //!< in the router's block, source-major [N, P, d]
  strided,  //!< in one buffer of the caller's, with any constant strides: depth_router::bind_rows
  listed    //!< in buffers of the caller's, one per row: depth_router::append(row)
};

//! Where the gradients of the calls (do, element T) are kept until every row they concern is
//! finished.
//!
//! dead_rows: in the places of rows that are finished already, the newest first, and in a few extra
//! rows while there is none (one in full mode). The rows are gone afterwards: no second backward,
//! no recompute of a call that reads one, and a sublayer whose backward needs its own output must
//! have kept a copy. Needs rows with position stride `width`, not listed ones.
enum class gradient_home : std::uint8_t
{
  block,
  dead_rows
};

//! Who keeps the mixes that the backward needs.
//!
//! caller: they are given back to backward_call; in full mode a mix is the sublayer's input, which
//! the model has anyway. router: in the states' slots, which are then not reused, [S][P, d]; a call
//! that is finished without new rows costs no copy.
enum class mix_keeper : std::uint8_t
{
  caller,
  router
};

//! Whether the gradient of a kind of parameter is wanted from any site.
enum class parameter_gradient : std::uint8_t
{
  wanted,
  frozen
};

//! Frozen kinds cost neither memory nor time. `query` stands for q and g, whose gradients come from
//! one sum.
struct wanted_gradients
{
  parameter_gradient query = parameter_gradient::wanted;
  parameter_gradient bias = parameter_gradient::wanted;
  parameter_gradient null_source = parameter_gradient::wanted;
  parameter_gradient gate = parameter_gradient::wanted;
  parameter_gradient output_norm_weight = parameter_gradient::wanted;
};

//! Everything that is fixed at construction. Pointers to parameters are kept; parameters are read
//! by begin_forward, by calls with an output stage and by finish_backward.
//!
//! Heads sharded over ranks: extent.norm_width is set (to `width` on a single rank). The caller
//! then writes inverse_rms(n) before the first call that reads row n, and adds head_sum(n) over the
//! ranks between gather_row and row_gradient. What would need further sums is refused with
//! code::unsupported: null sources, private rows, output norms.
struct router_config
{
  shape extent;
  depth_plan plan;
  std::vector<router_site> sites;  //!< [S / queries_per_site]
  int queries_per_site = 1;        //!< R adjacent calls share all but the query, which is [R, d]

  element call_state =
      element::float32;  //!< kept states of the forward: the rows' type, or the accumulation type
  element row_state = element::float32;  //!< kept states of the backward, the same choice
  router_use use = router_use::training;
  row_home rows = row_home::block;
  std::int64_t position_stride = 0;  //!< of listed rows; 0 means `width`
  gradient_home gradients = gradient_home::block;
  mix_keeper mixes = mix_keeper::caller;
  int recompute_calls =
      0;  //!< calls to recompute together at most; each needs the memory of a state
  wanted_gradients wanted;
};

//! Bytes of a router's block. States of the forward and everything of the backward share one place:
//! they are never live together, but for mixes that the router keeps.
struct router_memory
{
  std::size_t rows = 0;    //!< the rows, when they live in the block, and extra rows for gradients
  std::size_t folded = 0;  //!< the sites' parameters in the form the sweeps read
  std::size_t saved =
      0;  //!< from forward to backward: lse, inverse rms, mixes that the router keeps
  std::size_t forward = 0;    //!< states of the forward
  std::size_t backward = 0;   //!< call gradients, D, states and partial sums of the backward
  std::size_t workspace = 0;  //!< scratch of the backend, and the state that recompute works in
  std::size_t total = 0;      //!< the size of the block
};

//! Whether a router for rows of element T can be built; a pure function.
template <class T>
[[nodiscard]] status validate(const router_config& config) noexcept;

MHAR_NAMESPACE_END

#include <mhar/router/detail/validate_config.hpp>
