// SPDX-License-Identifier: Apache-2.0
//! The verbs of the sweeps as plain loops, one position after the other, on memory of the host: a
//! second backend beside the library's own, which shows that a router's backend is a template
//! argument, and the sweeps' equations at their shortest.
#pragma once

#include "naive_math.hpp"

#include <mhar/types/validate.hpp>

#include <cmath>
#include <cstring>
#include <vector>

namespace mhar_test {

struct naive_backend
{
  struct context
  {
    void* workspace = nullptr;
    std::size_t workspace_bytes = 0;
  };

  static mhar::status zero(void* data, std::size_t bytes, const context&) noexcept
  {
    std::memset(data, 0, bytes);
    return {};
  }
  static int num_chunks(const mhar::shape&) noexcept { return 1; }
  template <class T>
  static std::size_t packed_bytes(const mhar::shape&, int) noexcept
  {
    return 0;
  }
  template <class T>
  static std::size_t workspace_bytes(const mhar::sweep_limits&) noexcept
  {
    return 0;
  }

  template <class T>
  static mhar::status fold(const mhar::fold_problem<T>& problem, const context&) noexcept
  {
    using real = mhar::accumulate_t<T>;
    if (const auto refused = mhar::validate(problem); !refused.ok()) { return refused; }
    const auto& folded = problem.folded;
    const std::int64_t width = problem.extent.width;
    for (int c = 0; c < problem.num_calls; ++c) {
      const mhar::site_parameters& site = problem.sites[c];
      const int num_null = site.null_source ? 1 : 0;
      for (std::int64_t i = 0; i < width; ++i) {
        folded.query[c * width + i] = static_cast<real>(site.scale) *
                                      element_or<real>(site.query, i, 1) *
                                      element_or<real>(site.norm_weight, i, 1);
      }
      for (int n = 0; folded.bias != nullptr && n < problem.num_rows; ++n) {
        const bool exists = n < problem.num_sources[c] - num_null;
        folded.bias[c * folded.bias_stride + n] =
            exists ? element_or<real>(site.bias, n + num_null, 0) : 0;
      }
      const real alpha =
          problem.gates == nullptr ? real{1} : element_or<real>(problem.gates[c], 0, 1);
      folded.gate[c] = alpha;
      folded.logit_gate[c] = problem.num_sources[c] == 1 ? 0 : alpha;
      if (num_null == 0) { continue; }
      real* const null_source = folded.null_source + c * width;
      for (std::int64_t i = 0; i < width; ++i) {
        null_source[i] = element_or<real>(site.null_source, i, 0);
      }
      const real r = inverse_rms(null_source, width, width, static_cast<real>(site.eps));
      for (int h = 0; h < problem.extent.num_heads; ++h) {
        folded.null_logit[c * problem.extent.num_heads + h] =
            score<T>(folded, c, null_source, r, h, problem.extent, key::stored) +
            element_or<real>(site.bias, 0, 0);
      }
    }
    return {};
  }

  template <class T>
  static mhar::status advance(const mhar::advance_problem<T>& problem, const context&) noexcept
  {
    if (const auto refused = mhar::validate(problem); !refused.ok()) { return refused; }
    const std::int64_t positions = problem.extent.num_positions;
    for (std::int64_t p = 0; p < positions; ++p) {
      const int end = problem.first_row + problem.num_rows;
      for (int n = end - problem.num_new_rows; n < end; ++n) {
        problem.inverse_rms[n * positions + p] = inverse_rms_of(problem, problem.rows.at(n, p));
      }
      if (problem.private_row != nullptr) {
        problem.private_inverse_rms[p] =
            inverse_rms_of(problem, problem.private_row + p * problem.private_stride);
      }
      for (int member = 0; member < problem.num_calls; ++member) {
        advance_member(problem, p, member);
      }
    }
    return {};
  }

  template <class T>
  static mhar::status output_gradient(const mhar::output_gradient_problem<T>& problem,
                                      const context&) noexcept
  {
    if (const auto refused = mhar::validate(problem); !refused.ok()) { return refused; }
    for (std::int64_t p = 0; p < problem.extent.num_positions; ++p) {
      output_gradient_at(problem, p);
    }
    return {};
  }

  template <class T>
  static mhar::status gather(const mhar::gather_problem<T>& problem, const context&) noexcept
  {
    if (const auto refused = mhar::validate(problem); !refused.ok()) { return refused; }
    for (std::int64_t p = 0; p < problem.extent.num_positions; ++p) {
      for (int c = problem.first_call; c < problem.first_call + problem.num_new_calls; ++c) {
        dots(problem.extent, problem.call_gradients.at(c, p), problem.mixes.at(c, p),
             problem.dot + (c * problem.extent.num_positions + p) * problem.extent.num_heads);
      }
      for (int member = 0; member < problem.num_rows; ++member) {
        gather_member(problem, p, member);
      }
    }
    return {};
  }

  template <class T>
  static mhar::status reduce(const mhar::reduce_problem<T>& problem, const context&) noexcept
  {
    if (const auto refused = mhar::validate(problem); !refused.ok()) { return refused; }
    for (int site = 0; site < problem.num_sites; ++site) { reduce_site(problem, site); }
    return {};
  }

private:
  template <class T>
  static mhar::accumulate_t<T> inverse_rms_of(const mhar::advance_problem<T>& problem, const T* row)
  {
    return inverse_rms(row, problem.extent.width, problem.extent.full_width(),
                       static_cast<mhar::accumulate_t<T>>(problem.eps));
  }
  template <class T>
  static void advance_member(const mhar::advance_problem<T>& problem, std::int64_t p, int member);
  template <class T>
  static void output_gradient_at(const mhar::output_gradient_problem<T>& problem, std::int64_t p);
  template <class T>
  static void gather_member(const mhar::gather_problem<T>& problem, std::int64_t p, int member);
  template <class T>
  static void reduce_site(const mhar::reduce_problem<T>& problem, int site);
};

}  // namespace mhar_test

#include "naive_backward.hpp"
#include "naive_forward.hpp"
