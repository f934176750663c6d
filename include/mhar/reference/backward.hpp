// SPDX-License-Identifier: Apache-2.0
//! One position of one routing call, backward (docs/operator.md, equations 9 to 17).
#pragma once

#include <mhar/reference/forward.hpp>

MHAR_NAMESPACE_BEGIN
namespace reference {

//! Gradients of one position; those of parameters are this position's share.
struct position_gradients
{
  table sources;         //!< [N, d]  ds, the null source's first when there is one
  vector combined;       //!< [d]     do, which is also the partial's gradient
  vector folded;         //!< [d]     dw
  vector bias;           //!< [N]
  double gate = 0;       //!< dalpha
  vector output_weight;  //!< [d]     d(og)
};

//! Eq. 9: the gradient of o that comes through y = RMSNorm(o; og).
inline vector output_norm_gradient(const site& s, const vector& combined, const vector& upstream)
{
  if (s.norm == output_norm::none) { return upstream; }
  const double r = inverse_rms(combined, s.norm_width, s.output_eps);
  const vector scaled = upstream * s.output_weight;
  const vector normalised = r * combined;
  const double projection = (scaled * normalised).sum() / static_cast<double>(s.norm_width);
  return r * (scaled - projection * normalised);
}

//! `upstream` is dy; `combined_upstream`, which may be empty, is the gradient that reaches o by
//! other ways than y.
inline position_gradients backward(const site& s, const table& sources, const routed& f,
                                   const vector& upstream, const vector& combined_upstream)
{
  position_gradients g;
  g.combined = output_norm_gradient(s, f.combined, upstream);
  if (combined_upstream.size() > 0) { g.combined += combined_upstream; }
  g.output_weight = vector::Zero(s.width);
  if (s.norm == output_norm::rms) {
    g.output_weight = upstream * f.combined * inverse_rms(f.combined, s.norm_width, s.output_eps);
  }

  g.sources = table::Zero(s.num_sources, s.width);
  g.folded = vector::Zero(s.width);
  g.bias = vector::Zero(s.num_sources);
  vector head_sum = vector::Zero(s.num_sources);  // c
  const bool single = s.num_sources == 1;
  for (int h = 0; h < s.num_heads; ++h) {
    const std::int64_t first = h * s.head_width;
    const auto do_h = g.combined.segment(first, s.head_width);
    const double dot = (do_h * f.mix.segment(first, s.head_width)).sum();  // D
    g.gate += dot;

    for (int n = 0; n < s.num_sources; ++n) {
      const auto s_n = sources.row(n).segment(first, s.head_width);
      // A single source's weight does not depend on its logit, so a logit that is not finite leaves it.
      const bool nothing = f.lse(h) == -std::numeric_limits<double>::infinity();
      const double a = single && !nothing ? 1 : f.weights(n, h);
      // Conditions, not products with 0: what they keep out may be infinite.
      const bool fixed = single || a == 0 || s.gate == 0;
      const double dl = fixed ? 0 : s.gate * a * ((do_h * s_n).sum() - dot);
      if (s.gate != 0 && a != 0) {
        g.sources.row(n).segment(first, s.head_width) += s.gate * a * do_h;
      }
      if (dl == 0) { continue; }
      g.sources.row(n).segment(first, s.head_width) +=
          f.inverse_rms(n) * s.scale * dl * s.folded.segment(first, s.head_width);
      head_sum(n) += dl * f.scores(n, h);
      g.folded.segment(first, s.head_width) +=
          s.scale * dl * f.keys.row(n).segment(first, s.head_width);
      g.bias(n) += dl;
    }
  }
  for (int n = 0; n < s.num_sources; ++n) {
    if (head_sum(n) == 0) { continue; }
    // r * (r * s): a large row's r^2 would vanish before it meets the row.
    const double factor = head_sum(n) / static_cast<double>(s.norm_width) * f.inverse_rms(n);
    g.sources.row(n) -= factor * (f.inverse_rms(n) * sources.row(n));
  }
  return g;
}

}  // namespace reference
MHAR_NAMESPACE_END
