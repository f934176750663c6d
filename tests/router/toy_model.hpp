// SPDX-License-Identifier: Apache-2.0
//! A small model around a router: sublayer c makes row c+1 = tanh(y_c M_c) of call c's mix, and the
//! loss is <y_last, upstream>.
//!
//! A stage holds calls [first, last) of the model and reads the rows of earlier stages, too: a
//! pipeline of one stage or more.
#pragma once

#include "sweep_run.hpp"

#include <utility>
#include <vector>

namespace mhar_test {

//! Sizes and values that every stage shares. [P, d] matrices are contiguous; a weight is [d, d],
//! applied from the right.
template <class T>
struct toy_values
{
  mhar::shape extent;
  int num_calls = 0;
  std::vector<std::vector<T>> queries, norm_weights, weights;
  std::vector<T> embedding, upstream;

  toy_values(const mhar::shape& given, int calls, std::uint64_t stream)
      : extent{given}, num_calls{calls}
  {
    random_inputs random{stream};
    const std::int64_t width = given.width;
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    for (int c = 0; c < calls; ++c) {
      // Logits of about 1: larger ones make more of every rounding error, call after call.
      queries.push_back(random.vector<T>(width, 0.4));
      norm_weights.push_back(random.vector<T>(width));
      weights.push_back(random.vector<T>(width * width, scale));
    }
    embedding = random.vector<T>(given.num_positions * width);
    upstream = random.vector<T>(given.num_positions * width);
  }
};

//! Gradients of everything, the same lists for a stage and for the whole: of rows, queries, norm
//! weights and sublayers.
template <class T>
struct toy_gradients
{
  std::vector<std::vector<T>> rows, queries, norm_weights, weights;

  explicit toy_gradients(const toy_values<T>& values)
      : rows(static_cast<std::size_t>(values.num_calls), std::vector<T>(values.embedding.size())),
        queries(values.queries),
        norm_weights(values.norm_weights),
        weights(values.weights)
  {
    for (auto* const lists : {&queries, &norm_weights, &weights}) {
      for (auto& list : *lists) { std::fill(list.begin(), list.end(), T{0}); }
    }
  }
  bool operator==(const toy_gradients& other) const
  {
    return rows == other.rows && queries == other.queries && norm_weights == other.norm_weights &&
           weights == other.weights;
  }
};

//! row = tanh(y M).
template <class T>
void toy_sublayer(const toy_values<T>& values, int c, const T* y, T* row)
{
  const std::int64_t width = values.extent.width;
  const T* const weight = values.weights[static_cast<std::size_t>(c)].data();
  for (std::int64_t p = 0; p < values.extent.num_positions; ++p) {
    for (std::int64_t j = 0; j < width; ++j) {
      T sum = 0;
      for (std::int64_t i = 0; i < width; ++i) { sum += y[p * width + i] * weight[i * width + j]; }
      row[p * width + j] = std::tanh(sum);
    }
  }
}

//! dy = (drow * (1 - row^2)) M^T, and the sublayer's own gradient, added.
template <class T>
std::vector<T> toy_sublayer_gradient(const toy_values<T>& values, int c, const T* y, const T* row,
                                     const std::vector<T>& row_gradient, std::vector<T>& gradient)
{
  const std::int64_t width = values.extent.width;
  const T* const weight = values.weights[static_cast<std::size_t>(c)].data();
  std::vector<T> dy(row_gradient.size());
  for (std::int64_t p = 0; p < values.extent.num_positions; ++p) {
    for (std::int64_t j = 0; j < width; ++j) {
      const T out = row[p * width + j];
      const T dz = row_gradient[static_cast<std::size_t>(p * width + j)] * (1 - out * out);
      for (std::int64_t i = 0; i < width; ++i) {
        gradient[static_cast<std::size_t>(i * width + j)] += y[p * width + i] * dz;
        dy[static_cast<std::size_t>(p * width + i)] += weight[i * width + j] * dz;
      }
    }
  }
  return dy;
}

enum class toy_activations
{
  kept,
  recomputed  //!< a call's mix is forgotten once its sublayer has run
};

//! Calls [first, last) on a backend of the host.
template <class Backend, class T>
class toy_stage
{
public:
  toy_stage(const toy_values<T>& values, int first, int last, const mhar::depth_plan& plan,
            mhar::gradient_home gradients, toy_activations activations)
      : values_{values},
        first_{first},
        last_{last},
        activations_{activations},
        y_(static_cast<std::size_t>(values.num_calls)),
        router_{configure(plan, gradients)},
        block_{static_cast<std::int64_t>(router_.memory().total)}
  {
    mhar::check(router_.bind(block_.data(), block_.size()));
  }

  [[nodiscard]] mhar::depth_router<Backend, T>& router() { return router_; }

  //! `rows`: those of earlier stages; the rows made here are added, the one that only the next
  //! stage reads included.
  T forward(std::vector<std::vector<T>>& rows)
  {
    mhar::check(router_.begin_forward({}));
    T loss = 0;
    for (int c = first_; c < last_; ++c) {
      while (router_.num_rows() <= c) {
        const auto& row = rows[static_cast<std::size_t>(router_.num_rows())];
        std::copy(row.begin(), row.end(), router_.append());
      }
      auto& y = y_[static_cast<std::size_t>(c)];
      y.assign(values_.embedding.size(), T{0});
      mhar::check(router_.route({}, c - first_, {}, outputs(y)));
      if (c + 1 == values_.num_calls) {
        for (std::size_t i = 0; i < y.size(); ++i) { loss += y[i] * values_.upstream[i]; }
      }
      else {
        rows.emplace_back(y.size());
        toy_sublayer(values_, c, y.data(), rows.back().data());
      }
      if (activations_ == toy_activations::recomputed) { y.clear(); }
    }
    return loss;
  }

  //! `gradients.rows`: for all but the last stage, what later stages gave for rows [0,
  //! first_row_of_next]. They are added to.
  void backward(const std::vector<std::vector<T>>& rows, toy_gradients<T>& gradients)
  {
    mhar::check(router_.begin_backward({}));
    const bool is_last = last_ == values_.num_calls;
    for (int c = last_ - 1; c >= first_; --c) {
      auto& y = y_[static_cast<std::size_t>(c)];
      if (y.empty()) {
        y.assign(values_.embedding.size(), T{0});
        mhar::check(router_.recompute({}, c - first_, {}, outputs(y)));
      }
      const auto next = static_cast<std::size_t>(c + 1);
      const std::vector<T> dy =
          c + 1 == values_.num_calls
              ? values_.upstream
              : toy_sublayer_gradient(values_, c, y.data(), rows[next].data(), gradients.rows[next],
                                      gradients.weights[static_cast<std::size_t>(c)]);
      const mhar::matrix slot = router_.gradient_slot(c - first_);
      std::copy(dy.begin(), dy.end(), static_cast<T*>(slot.data));
      mhar::call_upstream upstream;
      upstream.output_gradient = slot;
      upstream.mix = {y.data(), values_.extent.width};
      mhar::check(router_.backward_call({}, c - first_, upstream));
      for (int n = c; n >= (c == first_ ? 0 : c); --n) {
        mhar::check(router_.row_gradient(
            {}, n,
            {gradients.rows[static_cast<std::size_t>(n)].data(), values_.extent.width,
             is_last ? mhar::update::store : mhar::update::accumulate}));
      }
    }
    std::vector<mhar::site_gradients> asked(static_cast<std::size_t>(last_ - first_));
    for (std::size_t i = 0; i < asked.size(); ++i) {
      asked[i].query = gradients.queries[i + static_cast<std::size_t>(first_)].data();
      asked[i].norm_weight = gradients.norm_weights[i + static_cast<std::size_t>(first_)].data();
    }
    mhar::check(router_.finish_backward({}, asked.data()));
  }

private:
  mhar::route_outputs<T> outputs(std::vector<T>& y) const
  {
    mhar::route_outputs<T> asked;
    asked.y = {y.data(), values_.extent.width};
    return asked;
  }

  mhar::router_config configure(const mhar::depth_plan& plan, mhar::gradient_home gradients) const
  {
    mhar::router_config config;
    config.extent = values_.extent;
    config.plan = plan;
    config.call_state = config.row_state = mhar::element_of<T>::value;
    config.gradients = gradients;
    config.recompute_calls = 1;
    for (int c = first_; c < last_; ++c) {
      mhar::router_site site;
      site.parameters.query = values_.queries[static_cast<std::size_t>(c)].data();
      site.parameters.norm_weight = values_.norm_weights[static_cast<std::size_t>(c)].data();
      config.sites.push_back(site);
    }
    return config;
  }

  const toy_values<T>& values_;
  int first_;
  int last_;
  toy_activations activations_;
  std::vector<std::vector<T>> y_;
  mhar::depth_router<Backend, T> router_;
  backend_array<Backend, unsigned char> block_;
};

}  // namespace mhar_test
