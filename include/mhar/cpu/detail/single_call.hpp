// SPDX-License-Identifier: Apache-2.0
//! A single call as a sweep of one call: its parameters folded into the workspace, its forward as one pass that finishes it.
#pragma once

#include <mhar/cpu/detail/chunks.hpp>
#include <mhar/cpu/detail/forward.hpp>
#include <mhar/types/call.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! The folded parameters of one call.
template <class T>
struct single_site
{
  single_site(arena& memory, const shape& extent, int num_rows, const site_parameters& site)
  {
    using accumulate = accumulate_t<T>;
    folded.query = memory.take<accumulate>(extent.width);
    folded.bias_stride = num_rows;
    folded.gate = memory.take<accumulate>(1);
    folded.logit_gate = memory.take<accumulate>(1);
    folded.rounding = site.rounding;
    if (site.bias) { folded.bias = memory.take<accumulate>(num_rows); }
    if (site.null_source) {
      folded.null_source = memory.take<accumulate>(extent.width);
      folded.null_logit = memory.take<accumulate>(extent.num_heads);
    }
    if (site.rounding == key_rounding::storage_twice) {
      unfolded.query = memory.take<accumulate>(extent.width);
      unfolded.norm_weight = memory.take<accumulate>(extent.width);
    }
  }

  folded_sites<accumulate_t<T>> folded;
  unfolded_site<accumulate_t<T>> unfolded;
};

//! Folds the site of a single call. `Problem` is route_problem or route_gradient_problem.
template <class T, class Problem>
[[nodiscard]] single_site<T> fold_single(const Problem& problem, arena& memory) noexcept
{
  const single_site<T> single{memory, problem.extent, problem.num_rows, problem.site};
  const int num_sources = problem.num_rows + (problem.site.null_source ? 1 : 0);
  fold_site<T>(problem.extent, problem.site, problem.stage.gate, num_sources, problem.num_rows,
               single.folded, 0, single.unfolded);
  return single;
}

//! The forward pass of a single call.
template <class T, class Problem>
[[nodiscard]] advance_problem<T> forward_pass(const Problem& problem,
                                              const single_site<T>& single) noexcept
{
  advance_problem<T> pass;
  pass.extent = problem.extent;
  pass.eps = problem.site.eps;
  pass.sites = single.folded;
  pass.num_calls = 1;
  pass.rows = problem.rows;
  pass.num_rows = problem.num_rows;
  pass.num_new_rows = problem.num_rows;
  pass.stage = problem.stage;
  return pass;
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
