// SPDX-License-Identifier: Apache-2.0
//! output_gradient, gather and reduce of the naive backend, one position, member or site at a time.
#pragma once

#include "naive_backend.hpp"

#include <limits>

namespace mhar_test {

//! Everything that one (call, source) pair adds: to A + r B and c of the source, to dw and dbias of
//! the call.
template <class T, class Source>
void naive_pair(const mhar::shape& extent, const mhar::folded_sites<mhar::accumulate_t<T>>& sites,
                int call, const Source* source, mhar::accumulate_t<T> r, mhar::accumulate_t<T> bias,
                const mhar::accumulate_t<T>* call_gradient, const mhar::accumulate_t<T>* lse,
                const mhar::accumulate_t<T>* dot, mhar::accumulate_t<T>* gradient,
                mhar::accumulate_t<T>& head_sum,
                const mhar::gradient_partials<mhar::accumulate_t<T>>& partials, int bias_entry)
{
  using real = mhar::accumulate_t<T>;
  const std::int64_t head_width = extent.head_width();
  std::vector<real> da(static_cast<std::size_t>(extent.num_heads));
  dots(extent, call_gradient, source, da.data());
  for (int h = 0; h < extent.num_heads; ++h) {
    const real logit = score<T>(sites, call, source, r, h, extent, key::stored) + bias;
    const real single = sites.logit_gate[call] == 0 ? real{1} : std::exp(logit - lse[h]);
    const real a = lse[h] == -std::numeric_limits<real>::infinity() ? 0 : single;
    const real dl = a == 0 || sites.logit_gate[call] == 0
                        ? 0
                        : sites.logit_gate[call] * a * (da[static_cast<std::size_t>(h)] - dot[h]);
    for (std::int64_t i = h * head_width; i < (h + 1) * head_width; ++i) {
      const real w = sites.query[call * extent.width + i];
      gradient[i] += sites.gate[call] * a * call_gradient[i] + (dl == 0 ? 0 : r * dl * w);
      if (partials.query != nullptr && dl != 0) {
        partials.query[call * extent.width + i] +=
            dl * key_element<T>(sites.rounding, key::stored, source[i], r);
      }
    }
    if (dl != 0) { head_sum += dl * score<T>(sites, call, source, r, h, extent, key::exact); }
    if (partials.bias != nullptr) {
      partials.bias[call * (partials.bias_stride + 1) + bias_entry] += dl;
    }
  }
}

//! ds = A + r B - (r^2/d) c s, element i.
template <class T, class Source>
mhar::accumulate_t<T> naive_source_gradient(const mhar::shape& extent, mhar::accumulate_t<T> sum,
                                            mhar::accumulate_t<T> head_sum, mhar::accumulate_t<T> r,
                                            Source s)
{
  using real = mhar::accumulate_t<T>;
  return sum - r * head_sum / static_cast<real>(extent.full_width()) * (r * mhar::widen<real>(s));
}

template <class T>
void naive_backend::output_gradient_at(const mhar::output_gradient_problem<T>& problem,
                                       std::int64_t p)
{
  using real = mhar::accumulate_t<T>;
  const mhar::shape& extent = problem.extent;
  const std::int64_t width = extent.width;
  const auto& partials = problem.partials;
  const mhar::output_stage& stage = problem.stage;
  std::vector<real> grad(static_cast<std::size_t>(width));
  std::vector<real> mix(grad.size());
  std::vector<real> combined(grad.size());
  for (std::int64_t i = 0; i < width; ++i) {
    const auto index = static_cast<std::size_t>(i);
    grad[index] = element_of_matrix<real>(problem.output_gradient, p, i);
    mix[index] = element_of_matrix<real>(problem.mix, p, i);
    if (problem.combined) { combined[index] = element_of_matrix<real>(problem.combined, p, i); }
  }
  if (stage.norm == mhar::output_norm::rms) {
    const real r = inverse_rms(combined.data(), width, width, static_cast<real>(stage.norm_eps));
    real projection = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const auto index = static_cast<std::size_t>(i);
      if (partials.output_norm != nullptr) {
        partials.output_norm[problem.call * width + i] += grad[index] * combined[index] * r;
      }
      grad[index] *= element_or<real>(stage.norm_weight, i, 1);
      projection += grad[index] * combined[index];
    }
    for (std::size_t i = 0; i < grad.size(); ++i) {
      grad[i] = r * grad[i] - r * r * r / static_cast<real>(width) * projection * combined[i];
    }
  }
  for (std::int64_t i = 0; i < width; ++i) {
    real& g = grad[static_cast<std::size_t>(i)];
    if (problem.combined_gradient) {
      g += element_of_matrix<real>(problem.combined_gradient, p, i);
    }
    put(problem.call_gradient, p, i, g);
    put(problem.partial_gradient, p, i, g);
  }
  real* const dot = problem.dot + p * extent.num_heads;
  dots(extent, grad.data(), mix.data(), dot);
  for (int h = 0; partials.gate != nullptr && h < extent.num_heads; ++h) {
    partials.gate[problem.call] += dot[h];
  }
  if (problem.sites.null_source == nullptr) { return; }

  const real* const null_source = problem.sites.null_source + problem.call * width;
  const real r = inverse_rms(null_source, width, width, static_cast<real>(problem.eps));
  const real bias = problem.sites.null_logit[problem.call * extent.num_heads] -
                    score<T>(problem.sites, problem.call, null_source, r, 0, extent, key::stored);
  std::vector<real> sum(grad.size());
  real head_sum = 0;
  naive_pair<T>(extent, problem.sites, problem.call, null_source, r, bias, grad.data(),
                problem.lse + p * extent.num_heads, dot, sum.data(), head_sum, partials, 0);
  for (std::int64_t i = 0; partials.null_source != nullptr && i < width; ++i) {
    partials.null_source[problem.call * width + i] += naive_source_gradient<T>(
        extent, sum[static_cast<std::size_t>(i)], head_sum, r, null_source[i]);
  }
}

template <class T>
void naive_backend::gather_member(const mhar::gather_problem<T>& problem, std::int64_t p,
                                  int member)
{
  using real = mhar::accumulate_t<T>;
  const mhar::shape& extent = problem.extent;
  const std::int64_t width = extent.width;
  const auto& states = problem.states;
  const std::int64_t slot = states.first_slot + member;
  const int row = problem.top_row - member;
  const T* const source = problem.rows.at(row, p);
  const real r = problem.inverse_rms[row * extent.num_positions + p];
  std::vector<real> sum(static_cast<std::size_t>(width));
  std::vector<real> call_gradient(sum.size());
  real head_sum = 0;
  if (problem.start == mhar::pass_start::kept) {
    for (std::int64_t i = 0; i < width; ++i) {
      sum[static_cast<std::size_t>(i)] =
          mhar::load<real>(states.gradient, states.type, slot * states.slot_stride + p * width + i);
    }
    head_sum = states.head_sum[slot * extent.num_positions + p];
  }
  for (int c = problem.first_call + problem.num_calls - 1; c >= problem.first_call; --c) {
    const T* const given = problem.call_gradients.at(c, p);
    for (std::int64_t i = 0; i < width; ++i) {
      call_gradient[static_cast<std::size_t>(i)] = mhar::widen<real>(given[i]);
    }
    const int entry = problem.bias_entry + row;
    const real bias = problem.sites.bias == nullptr
                          ? 0
                          : problem.sites.bias[c * problem.sites.bias_stride + entry];
    const std::int64_t head = (c * extent.num_positions + p) * extent.num_heads;
    naive_pair<T>(extent, problem.sites, c, source, r, bias, call_gradient.data(),
                  problem.lse + head, problem.dot + head, sum.data(), head_sum, problem.partials,
                  1 + entry);
  }
  if (member == 0 && problem.end == mhar::pass_end::finish_first) {
    for (std::int64_t i = 0; i < width; ++i) {
      put(problem.row_gradient, p, i,
          naive_source_gradient<T>(extent, sum[static_cast<std::size_t>(i)], head_sum, r,
                                   source[i]));
    }
    return;
  }
  for (std::int64_t i = 0; i < width; ++i) {
    mhar::store(states.gradient, states.type, slot * states.slot_stride + p * width + i,
                sum[static_cast<std::size_t>(i)]);
  }
  states.head_sum[slot * extent.num_positions + p] = head_sum;
}

template <class T>
void naive_backend::reduce_site(const mhar::reduce_problem<T>& problem, int site)
{
  using real = mhar::accumulate_t<T>;
  const std::int64_t width = problem.extent.width;
  const mhar::site_parameters& parameters = problem.sites[site];
  const mhar::site_gradients& wanted = problem.gradients[site];
  const auto& partials = problem.partials;
  const int first = site * problem.queries_per_site;
  const auto scale = static_cast<real>(parameters.scale);
  const auto add_up = [&](const real* sums, std::int64_t stride, std::int64_t i) {
    real total = 0;
    for (int c = first; c < first + problem.queries_per_site; ++c) {
      total += sums[c * stride + i];
    }
    return total;
  };
  const auto write = [&](const mhar::array& gradient, const real* sums, std::int64_t stride,
                         std::int64_t count) {
    for (std::int64_t i = 0; gradient && i < count; ++i) {
      put(gradient.data, gradient.type, gradient.mode, i, add_up(sums, stride, i));
    }
  };
  for (std::int64_t i = 0; i < width; ++i) {
    real norm_weight_gradient = 0;
    for (int q = 0; (wanted.query || wanted.norm_weight) && q < problem.queries_per_site; ++q) {
      const real dw = scale * partials.query[(first + q) * width + i];
      put(wanted.query.data, wanted.query.type, wanted.query.mode, q * width + i,
          dw * element_or<real>(parameters.norm_weight, i, 1));
      norm_weight_gradient += dw * element_or<real>(parameters.query, q * width + i, 1);
    }
    put(wanted.norm_weight.data, wanted.norm_weight.type, wanted.norm_weight.mode, i,
        norm_weight_gradient);
  }
  const int no_null = parameters.null_source ? 0 : 1;  // entry 0 of the sums is the null source's
  const std::int64_t num_bias = problem.num_bias == nullptr ? 0 : problem.num_bias[site];
  if (wanted.bias) {
    write(wanted.bias, partials.bias + no_null, partials.bias_stride + 1, num_bias);
  }
  write(wanted.null_source, partials.null_source, width, width);
  write(wanted.gate, partials.gate, 1, 1);
  write(wanted.output_norm_weight, partials.output_norm, width, width);
}

}  // namespace mhar_test
