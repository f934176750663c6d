// SPDX-License-Identifier: Apache-2.0
//! One position of one routing call, forward (docs/operator.md, equations 1 to 8).
#pragma once

#include <mhar/reference/site.hpp>

#include <cmath>
#include <limits>
#include <optional>

MHAR_NAMESPACE_BEGIN
namespace reference {

//! What the forward computes for one position. N sources, H heads.
struct routed
{
  vector inverse_rms;  //!< [N]     r
  table keys;          //!< [N, d]  r*s, rounded as the policy says
  table scores;        //!< [N, H]  u, of the un-rounded keys
  table logits;        //!< [N, H]  l, of the rounded keys
  vector lse;          //!< [H]
  table weights;       //!< [N, H]  a
  vector mix;          //!< [d]
  vector combined;     //!< [d]     o
  vector output;       //!< [d]     y
};

//! Results of an earlier forward, as they were stored. One that is given takes the place of the
//! computed value.
struct saved_values
{
  std::optional<vector> inverse_rms;  //!< of the rows, the null source excluded
  std::optional<vector> lse;
  std::optional<vector> mix;
  std::optional<vector> combined;
};

//! Eq. 1: (mean(x^2) + eps)^-1/2. Squares are taken in units of the largest element, so that none
//! overflows.
inline double inverse_rms(const vector& x, std::int64_t width, double eps)
{
  const double largest = x.abs().maxCoeff();
  const double unit = largest > 0 && std::isfinite(largest) ? largest : 1;
  const double mean = (x / unit).square().sum() / static_cast<double>(width);
  return 1 / std::hypot(unit * std::sqrt(mean), std::sqrt(eps));
}

//! Rounded to the type that rows are stored in.
template <class T>
table rounded(const table& values)
{
  return values.unaryExpr([](double value) { return widen<double>(round_to<T>(value)); });
}

//! Eq. 2 and 8: scale * <query_h, keys_{n,h}> for every source and head.
inline table scores(const site& s, const vector& query, const table& keys)
{
  table result(s.num_sources, s.num_heads);
  for (int h = 0; h < s.num_heads; ++h) {
    const auto query_h = query.segment(h * s.head_width, s.head_width);
    const auto keys_h = keys.middleCols(h * s.head_width, s.head_width);
    result.col(h) = s.scale * (keys_h.rowwise() * query_h).rowwise().sum();
  }
  return result;
}

//! Eq. 4: log sum_n exp(l_n) of one head; -inf when every logit is.
inline double log_sum_exp(const Eigen::Ref<const Eigen::ArrayXd>& logits)
{
  const double largest = logits.maxCoeff<Eigen::PropagateNaN>();
  if (largest == -std::numeric_limits<double>::infinity()) { return largest; }
  return largest + std::log((logits - largest).exp().sum());
}

//! T is the type that rows are stored in, which matters when keys are rounded to it. `partial` is
//! empty when there is none.
template <class T>
routed forward(const site& s, const table& sources, const vector& partial,
               const saved_values& saved = {})
{
  routed f;
  f.inverse_rms.resize(s.num_sources);
  for (int n = 0; n < s.num_sources; ++n) {
    f.inverse_rms(n) = saved.inverse_rms && n >= s.num_null
                           ? (*saved.inverse_rms)(n - s.num_null)
                           : inverse_rms(sources.row(n), s.norm_width, s.eps);
  }

  const table keys = sources.colwise() * f.inverse_rms.transpose();
  f.keys = s.rounding == key_rounding::none ? keys : rounded<T>(keys);
  f.scores = scores(s, s.folded, keys);
  f.logits = s.rounding == key_rounding::storage_twice
                 ? scores(s, s.query, rounded<T>(f.keys.rowwise() * s.norm_weight))
                 : scores(s, s.folded, f.keys);
  f.logits.colwise() += s.bias.transpose();

  f.lse.resize(s.num_heads);
  f.weights.resize(s.num_sources, s.num_heads);
  f.mix.resize(s.width);
  for (int h = 0; h < s.num_heads; ++h) {
    f.lse(h) = saved.lse ? (*saved.lse)(h) : log_sum_exp(f.logits.col(h));
    const bool nothing = f.lse(h) == -std::numeric_limits<double>::infinity();
    if (nothing) { f.weights.col(h).setZero(); }
    else if (s.num_sources == 1 && std::isfinite(f.lse(h))) {
      f.weights.col(h).setOnes();
    }
    else {
      f.weights.col(h) = (f.logits.col(h) - f.lse(h)).exp();
    }

    const auto sources_h = sources.middleCols(h * s.head_width, s.head_width);
    f.mix.segment(h * s.head_width, s.head_width) =
        (sources_h.colwise() * f.weights.col(h)).colwise().sum();
  }
  if (saved.mix) { f.mix = *saved.mix; }

  // A closed gate selects the partial instead of adding 0 * mix, which is not 0 when the mix is not
  // finite.
  f.combined = s.gate == 0 ? vector::Zero(s.width) : vector{s.gate * f.mix};
  if (partial.size() > 0) { f.combined = s.gate == 0 ? partial : vector{f.combined + partial}; }
  if (saved.combined) { f.combined = *saved.combined; }

  f.output = f.combined;
  if (s.norm == output_norm::rms) {
    f.output *= inverse_rms(f.combined, s.norm_width, s.output_eps) * s.output_weight;
  }
  return f;
}

}  // namespace reference
MHAR_NAMESPACE_END
