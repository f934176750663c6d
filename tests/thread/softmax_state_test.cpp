// SPDX-License-Identifier: Apache-2.0
//! The running softmax against the textbook one, and its rules for logits of -inf.
#include "support/random.hpp"
#include "support/tolerance.hpp"

#include <mhar/thread/softmax_state.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace mhar_test;
using mhar::thread::infinity;
using mhar::thread::merge_lse;
using mhar::thread::softmax_state;

namespace {

//! The state and its unnormalised mix of one column.
template <class Real>
struct summary
{
  softmax_state<Real> state;
  Real mix = 0;

  void advance(Real logit, Real source)
  {
    const auto step = state.advance(logit);
    mix = step.rescale * mix + step.weight * source;
  }
  void merge(const summary& other)
  {
    const auto step = state.merge(other.state);
    mix = step.rescale * mix + step.weight * other.mix;
  }
  Real finish() const { return state.normalizer() * mix; }
};

template <class Real>
summary<Real> summary_of(const std::vector<Real>& logits, const std::vector<Real>& sources)
{
  summary<Real> all;
  for (std::size_t i = 0; i < logits.size(); ++i) { all.advance(logits[i], sources[i]); }
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("softmax_state: equals the textbook softmax", Real, float, double)
{
  random_inputs random{201};
  for (int i = 0; i < 200; ++i) {
    const auto count = random.integer(1, 70);
    const auto logits = random.vector<Real>(count, 4);
    const auto sources = random.vector<Real>(count);
    double sum = 0;
    double mix = 0;
    for (std::size_t n = 0; n < logits.size(); ++n) {
      sum += std::exp(static_cast<double>(logits[n]));
      mix += std::exp(static_cast<double>(logits[n])) * static_cast<double>(sources[n]);
    }
    const auto all = summary_of(logits, sources);
    CHECK(close(static_cast<double>(all.finish()), mix / sum, tolerance_of<Real>()));
    CHECK(close(static_cast<double>(all.state.log_sum_exp()), std::log(sum), tolerance_of<Real>()));
  }
}

TEST_CASE_TEMPLATE("softmax_state: parts merge to the whole, in any order", Real, float, double)
{
  random_inputs random{202};
  for (int i = 0; i < 200; ++i) {
    const auto a_logits = random.vector<Real>(random.integer(0, 9), 4);
    const auto a_sources = random.vector<Real>(static_cast<std::int64_t>(a_logits.size()));
    const auto b_logits = random.vector<Real>(random.integer(1, 9), 4);
    const auto b_sources = random.vector<Real>(static_cast<std::int64_t>(b_logits.size()));
    auto whole = summary_of(a_logits, a_sources);
    for (std::size_t n = 0; n < b_logits.size(); ++n) { whole.advance(b_logits[n], b_sources[n]); }
    auto ab = summary_of(a_logits, a_sources);
    ab.merge(summary_of(b_logits, b_sources));
    auto ba = summary_of(b_logits, b_sources);
    ba.merge(summary_of(a_logits, a_sources));
    for (const auto& merged : {ab, ba}) {
      CHECK(close(static_cast<double>(merged.finish()), static_cast<double>(whole.finish()),
                  tolerance_of<Real>()));
      CHECK(close(static_cast<double>(merged.state.log_sum_exp()),
                  static_cast<double>(whole.state.log_sum_exp()), tolerance_of<Real>()));
    }
  }
}

TEST_CASE_TEMPLATE("softmax_state: a logit of -inf has no weight, wherever it comes", Real, float,
                   double)
{
  for (int finite = 0; finite < 65; ++finite) {
    summary<Real> all;
    for (int n = 0; n < 65; ++n) {
      all.advance(n == finite ? Real(3) : -infinity<Real>, n == finite ? Real(7) : Real(1));
    }
    CHECK(all.finish() == 7);
    CHECK(all.state.log_sum_exp() == 3);
  }
}

TEST_CASE_TEMPLATE("softmax_state: without a source of weight the mix is 0 and the lse -inf", Real,
                   float, double)
{
  summary<Real> all;
  CHECK(all.finish() == 0);
  CHECK(all.state.log_sum_exp() == -infinity<Real>);
  for (int n = 0; n < 3; ++n) { all.advance(-infinity<Real>, Real(5)); }
  CHECK(all.finish() == 0);
  CHECK(all.state.log_sum_exp() == -infinity<Real>);
}

TEST_CASE_TEMPLATE("softmax_state: merging with an empty state changes no bit", Real, float, double)
{
  const summary<Real> empty;
  const summary<Real> one{{Real(3), Real(1)}, Real(0.1)};
  summary<Real> left = empty;
  left.merge(one);
  summary<Real> right = one;
  right.merge(empty);
  for (const auto& merged : {left, right}) {
    CHECK(merged.state.maximum == 3);
    CHECK(merged.state.sum == 1);
    CHECK(merged.mix == Real(0.1));
  }
  summary<Real> both = empty;
  both.merge(empty);
  CHECK(both.state.maximum == -infinity<Real>);
  CHECK(both.state.sum == 0);
  CHECK(both.mix == 0);
}

TEST_CASE_TEMPLATE("softmax_state: logits far apart underflow to exact weights", Real, float,
                   double)
{
  summary<Real> all;
  all.advance(Real(-1e30), Real(5));
  all.advance(Real(1e4), Real(2));
  all.advance(Real(-1e4), Real(3));
  CHECK(all.finish() == 2);
  CHECK(all.state.log_sum_exp() == Real(1e4));
}

TEST_CASE_TEMPLATE("softmax_state: a NaN logit is not lost", Real, float, double)
{
  const Real nan = std::numeric_limits<Real>::quiet_NaN();
  for (int bad = 0; bad < 3; ++bad) {
    for (const Real other : {Real(1), -infinity<Real>}) {
      summary<Real> all;
      for (int n = 0; n < 3; ++n) { all.advance(n == bad ? nan : other, Real(1)); }
      CHECK(std::isnan(all.finish()));
    }
  }
}

TEST_CASE_TEMPLATE("merge_lse: weights of two finished parts", Real, float, double)
{
  const Real inf = infinity<Real>;
  const auto equal = merge_lse(Real(1), Real(1));
  CHECK(equal.weight_a == Real(0.5));
  CHECK(equal.weight_b == Real(0.5));
  CHECK(close(static_cast<double>(equal.lse), 1 + std::log(2.0), tolerance_of<Real>()));

  const auto left = merge_lse(Real(1.7), -inf);
  CHECK(left.weight_a == 1);
  CHECK(left.weight_b == 0);
  CHECK(left.lse == Real(1.7));
  const auto right = merge_lse(-inf, Real(1.7));
  CHECK(right.weight_a == 0);
  CHECK(right.weight_b == 1);
  CHECK(right.lse == Real(1.7));
  const auto none = merge_lse(-inf, -inf);
  CHECK(none.weight_a == 0);
  CHECK(none.weight_b == 0);
  CHECK(none.lse == -inf);
}
