// SPDX-License-Identifier: Apache-2.0
//! advance of the naive backend: one member of a pass at one position.
#pragma once

#include "naive_backend.hpp"

#include <limits>

namespace mhar_test {

//! (m, l, acc) of one head.
template <class Real>
struct naive_state
{
  Real max = -std::numeric_limits<Real>::infinity();
  Real sum = 0;
  Real* mix = nullptr;

  //! One more source; a kept state is one, too, its lse being its logit.
  template <class Source>
  void add(Real logit, const Source* source, std::int64_t head_width)
  {
    if (logit == -std::numeric_limits<Real>::infinity()) { return; }
    const Real highest = std::max(max, logit);
    const Real old_weight = std::exp(max - highest);
    const Real new_weight = std::exp(logit - highest);
    sum = sum * old_weight + new_weight;
    for (std::int64_t i = 0; i < head_width; ++i) {
      mix[i] = mix[i] * old_weight + new_weight * mhar::widen<Real>(source[i]);
    }
    max = highest;
  }
};

template <class T>
void naive_finish(const mhar::advance_problem<T>& problem, std::int64_t p,
                  const std::vector<mhar::accumulate_t<T>>& mix)
{
  using real = mhar::accumulate_t<T>;
  const std::int64_t width = problem.extent.width;
  const mhar::output_stage& stage = problem.stage;
  const real alpha = element_or<real>(stage.gate, 0, 1);
  std::vector<real> combined(mix.size());
  for (std::int64_t i = 0; i < width; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const real partial = stage.partial ? element_of_matrix<real>(stage.partial, p, i) : 0;
    combined[index] = alpha == 0 ? partial : partial + alpha * mix[index];
  }
  const real r = inverse_rms(combined.data(), width, width, static_cast<real>(stage.norm_eps));
  for (std::int64_t i = 0; i < width; ++i) {
    const real o = combined[static_cast<std::size_t>(i)];
    const real y = stage.norm == mhar::output_norm::none
                       ? o
                       : o * r * element_or<real>(stage.norm_weight, i, 1);
    put(problem.outputs.y, p, i, y);
    put(problem.outputs.combined, p, i, o);
    put(problem.outputs.mix, p, i, mix[static_cast<std::size_t>(i)]);
  }
}

template <class T>
void naive_backend::advance_member(const mhar::advance_problem<T>& problem, std::int64_t p,
                                   int member)
{
  using real = mhar::accumulate_t<T>;
  const mhar::shape& extent = problem.extent;
  const std::int64_t width = extent.width;
  const std::int64_t head_width = extent.head_width();
  const int call = problem.first_call + member;
  const auto& sites = problem.sites;
  const auto& states = problem.states;
  const std::int64_t slot = states.first_slot + member;
  const bool finish = member == 0 && problem.end == mhar::pass_end::finish_first;
  const auto bias = [&](int n) {
    return sites.bias == nullptr ? real{0} : sites.bias[call * sites.bias_stride + n];
  };

  std::vector<real> mix(static_cast<std::size_t>(width));
  std::vector<real> kept(static_cast<std::size_t>(width));
  const bool is_kept = problem.start == mhar::pass_start::kept;
  for (std::int64_t i = 0; is_kept && i < width; ++i) {
    kept[static_cast<std::size_t>(i)] =
        mhar::load<real>(states.mix, states.type, slot * states.slot_stride + p * width + i);
  }
  for (int h = 0; h < extent.num_heads; ++h) {
    const std::int64_t first = h * head_width;
    const std::int64_t head = p * extent.num_heads + h;
    naive_state<real> state;
    state.mix = mix.data() + first;
    if (is_kept) {
      const real lse = states.lse[slot * extent.num_positions * extent.num_heads + head];
      state.add(lse, kept.data() + first, head_width);
    }
    else if (sites.null_source != nullptr) {
      state.add(sites.null_logit[call * extent.num_heads + h],
                sites.null_source + call * width + first, head_width);
    }
    for (int n = problem.first_row; n < problem.first_row + problem.num_rows; ++n) {
      const T* const row = problem.rows.at(n, p);
      const real r = problem.inverse_rms[n * extent.num_positions + p];
      state.add(score<T>(sites, call, row, r, h, extent, key::stored) + bias(n), row + first,
                head_width);
    }
    if (finish && problem.private_row != nullptr) {
      const T* const row = problem.private_row + p * problem.private_stride;
      const real r = problem.private_inverse_rms[p];
      state.add(score<T>(sites, call, row, r, h, extent, key::stored) + bias(problem.private_bias),
                row + first, head_width);
    }
    for (std::int64_t i = 0; i < head_width; ++i) {
      state.mix[i] = state.sum == 0 ? 0 : state.mix[i] / state.sum;
    }
    const real lse = state.sum == 0 ? state.max : state.max + std::log(state.sum);
    if (!finish) { states.lse[slot * extent.num_positions * extent.num_heads + head] = lse; }
    else if (problem.outputs.lse != nullptr) {
      problem.outputs.lse[head] = lse;
    }
  }
  if (finish) {
    naive_finish(problem, p, mix);
    return;
  }
  for (std::int64_t i = 0; i < width; ++i) {
    mhar::store(states.mix, states.type, slot * states.slot_stride + p * width + i,
                mix[static_cast<std::size_t>(i)]);
  }
}

}  // namespace mhar_test
