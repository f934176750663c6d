// SPDX-License-Identifier: Apache-2.0
//! The operator once more, as plain loops in any arithmetic: checks the reference, and in float
//! shows that the tolerances are what a straightforward kernel can keep.
//!
//! The backward goes another way than docs/operator.md: through the gradient of each normalised
//! key, as the paper writes it.
#pragma once

#include <mhar/types/call.hpp>

#include <cmath>
#include <vector>

namespace mhar_test {

template <class Real, class T>
class naive
{
public:
  using values = std::vector<Real>;

  naive(const mhar::shape& extent, int num_rows, const mhar::const_rows<T>& rows,
        const mhar::site_parameters& site, const mhar::output_stage& stage)
      : d_{static_cast<int>(extent.width)},
        heads_{extent.num_heads},
        has_null_{site.null_source ? 1 : 0},
        n_{num_rows + has_null_},
        rows_{rows},
        site_{site},
        stage_{stage}
  {
  }

  void position(std::int64_t p)
  {
    source.assign(size(n_ * d_), 0);
    r.assign(size(n_), 0);
    key.assign(size(n_ * d_), 0);
    score.assign(size(n_ * heads_), 0);
    weight.assign(size(n_ * heads_), 0);
    lse.assign(size(heads_), 0);
    mix.assign(size(d_), 0);
    o.assign(size(d_), 0);
    y.assign(size(d_), 0);
    for (int n = 0; n < n_; ++n) {
      Real squares = 0;
      for (int j = 0; j < d_; ++j) {
        const Real s = n < has_null_
                           ? mhar::load<Real>(site_.null_source.data, site_.null_source.type, j)
                           : mhar::widen<Real>(rows_.at(n - has_null_, p)[j]);
        source[at(n, j)] = s;
        squares += s * s;
      }
      r[size(n)] = 1 / std::sqrt(squares / Real(d_) + Real(site_.eps));
      for (int j = 0; j < d_; ++j) { key[at(n, j)] = round_key(source[at(n, j)] * r[size(n)]); }
    }
    softmax();
    const Real alpha = gate();
    for (int j = 0; j < d_; ++j) {
      for (int n = 0; n < n_; ++n) { mix[size(j)] += weight[wat(n, head(j))] * source[at(n, j)]; }
      o[size(j)] = alpha * mix[size(j)];
      if (stage_.partial) {
        o[size(j)] += mhar::load<Real>(stage_.partial.data, stage_.partial.type,
                                       p * stage_.partial.position_stride + j);
      }
    }
    output();
  }

  Real gate() const
  {
    return stage_.gate ? mhar::load<Real>(stage_.gate.data, stage_.gate.type, 0) : Real(1);
  }
  Real output_rms() const
  {
    Real squares = 0;
    for (int j = 0; j < d_; ++j) { squares += o[size(j)] * o[size(j)]; }
    return 1 / std::sqrt(squares / Real(d_) + Real(stage_.norm_eps));
  }
  void output()
  {
    const Real ro = stage_.norm == mhar::output_norm::rms ? output_rms() : Real(1);
    for (int j = 0; j < d_; ++j) {
      y[size(j)] = o[size(j)] * ro * parameter(stage_.norm_weight, j, 1);
    }
  }

  static Real parameter(const mhar::const_array& values, int j, Real absent)
  {
    return values ? mhar::load<Real>(values.data, values.type, j) : absent;
  }
  Real q(int j) const { return parameter(site_.query, j, 0); }
  Real g(int j) const { return parameter(site_.norm_weight, j, 1); }
  int head(int j) const { return j / (d_ / heads_); }
  static std::size_t size(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::size_t at(int n, int j) const { return size(std::int64_t{n} * d_ + j); }
  std::size_t wat(int n, int h) const { return size(n * heads_ + h); }
  int num_sources() const { return n_; }
  int has_null() const { return has_null_; }

  values source, r, key, score, weight, lse, mix, o, y;

private:
  Real round_key(Real value) const
  {
    return site_.rounding == mhar::key_rounding::none ? value
                                                      : mhar::widen<Real>(mhar::round_to<T>(value));
  }
  void softmax()
  {
    for (int h = 0; h < heads_; ++h) {
      Real largest = -INFINITY;
      values logit(size(n_), 0);
      for (int n = 0; n < n_; ++n) {
        Real exact = 0;
        Real rounded = 0;
        for (int j = 0; j < d_; ++j) {
          if (head(j) != h) { continue; }
          exact += q(j) * g(j) * source[at(n, j)] * r[size(n)];
          rounded += site_.rounding == mhar::key_rounding::storage_twice
                         ? q(j) * round_key(g(j) * key[at(n, j)])
                         : q(j) * g(j) * key[at(n, j)];
        }
        score[wat(n, h)] = Real(site_.scale) * exact;
        logit[size(n)] = Real(site_.scale) * rounded + parameter(site_.bias, n, 0);
        largest = std::fmax(largest, logit[size(n)]);
      }
      Real sum = 0;
      for (int n = 0; n < n_; ++n) {
        weight[wat(n, h)] = std::isinf(largest) ? Real(0) : std::exp(logit[size(n)] - largest);
        sum += weight[wat(n, h)];
      }
      for (int n = 0; n < n_ && sum > 0; ++n) { weight[wat(n, h)] /= sum; }
      lse[size(h)] = largest + (sum > 0 ? std::log(sum) : Real(0));
    }
  }

  int d_, heads_, has_null_, n_;
  mhar::const_rows<T> rows_;
  mhar::site_parameters site_;
  mhar::output_stage stage_;
};

template <class Real>
void write(const mhar::matrix& out, std::int64_t p, int j, Real value)
{
  if (!out) { return; }
  const std::int64_t index = p * out.position_stride + j;
  const bool add = out.mode == mhar::update::accumulate;
  mhar::store(out.data, out.type, index,
              (add ? mhar::load<Real>(out.data, out.type, index) : Real(0)) + value);
}

template <class Real, class T>
void naive_route(const mhar::route_problem<T>& problem)
{
  naive<Real, T> f{problem.extent, problem.num_rows, problem.rows, problem.site, problem.stage};
  const std::int64_t positions = problem.extent.num_positions;
  const int heads = problem.extent.num_heads;
  const auto& out = problem.outputs;
  using statistics = mhar::accumulate_t<T>;
  for (std::int64_t p = 0; p < positions; ++p) {
    f.position(p);
    for (int j = 0; j < problem.extent.width; ++j) {
      write(out.y, p, j, f.y[f.size(j)]);
      write(out.combined, p, j, f.o[f.size(j)]);
      write(out.mix, p, j, f.mix[f.size(j)]);
    }
    for (int h = 0; h < heads; ++h) {
      if (out.lse) { out.lse[p * heads + h] = static_cast<statistics>(f.lse[f.size(h)]); }
      for (int n = 0; out.weights && n < f.num_sources(); ++n) {
        out.weights[(p * heads + h) * f.num_sources() + n] =
            static_cast<statistics>(f.weight[f.wat(n, h)]);
      }
    }
    for (int n = 0; out.inverse_rms && n < problem.num_rows; ++n) {
      out.inverse_rms[n * positions + p] = static_cast<statistics>(f.r[f.size(n + f.has_null())]);
    }
  }
}

//! Takes the same saved values as a backend does, where they change the result by more than
//! rounding.
template <class Real, class T>
void naive_route_gradient(const mhar::route_gradient_problem<T>& problem)
{
  naive<Real, T> f{problem.extent, problem.num_rows, problem.rows, problem.site, problem.stage};
  const int d = static_cast<int>(problem.extent.width);
  const int heads = problem.extent.num_heads;
  const int num_sources = f.num_sources();
  const Real scale = Real(problem.site.scale);
  std::vector<Real> dw(f.size(d)), db(f.size(num_sources)), dnull(f.size(d)), dog(f.size(d));
  Real dalpha = 0;

  for (std::int64_t p = 0; p < problem.extent.num_positions; ++p) {
    f.position(p);
    const auto read = [&](const mhar::const_matrix& m, int j) {
      return mhar::load<Real>(m.data, m.type, p * m.position_stride + j);
    };
    const Real alpha = f.gate();
    for (int j = 0; j < d; ++j) {
      if (problem.mix) {
        f.mix[f.size(j)] = read(problem.mix, j);
        f.o[f.size(j)] = alpha * f.mix[f.size(j)] +
                         (problem.stage.partial ? read(problem.stage.partial, j) : Real(0));
      }
      if (problem.combined) { f.o[f.size(j)] = read(problem.combined, j); }
    }

    // Through the output norm, by the Jacobian: dy_j/do_i = og_j (ro [i == j] - ro^3/d o_i o_j).
    std::vector<Real> upstream(f.size(d));
    const bool norm = problem.stage.norm == mhar::output_norm::rms;
    const Real ro = norm ? f.output_rms() : Real(1);
    Real projection = 0;
    for (int j = 0; j < d; ++j) {
      const Real dy = read(problem.output_gradient, j);
      const Real weighted = dy * f.parameter(problem.stage.norm_weight, j, 1);
      dog[f.size(j)] += dy * f.o[f.size(j)] * ro;
      upstream[f.size(j)] = weighted * ro;
      projection += weighted * f.o[f.size(j)];
    }
    for (int j = 0; j < d; ++j) {
      if (norm) { upstream[f.size(j)] -= ro * ro * ro / Real(d) * projection * f.o[f.size(j)]; }
      if (problem.combined_gradient) { upstream[f.size(j)] += read(problem.combined_gradient, j); }
      write(problem.partial_gradient, p, j, upstream[f.size(j)]);
    }

    std::vector<Real> dot(f.size(heads));
    for (int j = 0; j < d; ++j) {
      dot[f.size(f.head(j))] += upstream[f.size(j)] * f.mix[f.size(j)];
      dalpha += upstream[f.size(j)] * f.mix[f.size(j)];
    }
    for (int n = 0; n < num_sources; ++n) {
      std::vector<Real> dl(f.size(heads));
      for (int j = 0; j < d; ++j) {
        dl[f.size(f.head(j))] += upstream[f.size(j)] * f.source[f.at(n, j)];
      }
      for (int h = 0; h < heads; ++h) {
        dl[f.size(h)] = num_sources == 1
                            ? Real(0)
                            : alpha * f.weight[f.wat(n, h)] * (dl[f.size(h)] - dot[f.size(h)]);
        db[f.size(n)] += dl[f.size(h)];
      }
      // The gradient of the normalised key, and its way through the norm.
      const Real r = f.r[f.size(n)];
      Real along = 0;
      for (int j = 0; j < d; ++j) {
        along += scale * dl[f.size(f.head(j))] * f.q(j) * f.g(j) * f.source[f.at(n, j)];
      }
      for (int j = 0; j < d; ++j) {
        const Real dlogit = dl[f.size(f.head(j))];
        dw[f.size(j)] += scale * dlogit * f.key[f.at(n, j)];
        const Real dkey = scale * dlogit * f.q(j) * f.g(j);
        const Real ds = alpha * f.weight[f.wat(n, f.head(j))] * upstream[f.size(j)] + r * dkey -
                        r * r * r / Real(d) * along * f.source[f.at(n, j)];
        if (n < f.has_null()) { dnull[f.size(j)] += ds; }
        else if (problem.row_gradients) {
          write(problem.row_gradients.row(n - f.has_null()), p, j, ds);
        }
      }
    }
  }

  const auto add = [](const mhar::array& out, int j, Real value) {
    write(mhar::matrix{out.data, out.type, 0, out.mode}, 0, j, value);
  };
  for (int j = 0; j < d; ++j) {
    add(problem.gradients.query, j, dw[f.size(j)] * f.g(j));
    add(problem.gradients.norm_weight, j, dw[f.size(j)] * f.q(j));
    add(problem.gradients.null_source, j, dnull[f.size(j)]);
    add(problem.gradients.output_norm_weight, j, dog[f.size(j)]);
  }
  for (int n = 0; n < num_sources; ++n) { add(problem.gradients.bias, n, db[f.size(n)]); }
  add(problem.gradients.gate, 0, dalpha);
}

}  // namespace mhar_test
