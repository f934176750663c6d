// SPDX-License-Identifier: Apache-2.0
//! The residual stream replaced by routing over depth: an input is a learned mean of all rows so
//! far, head by head.
#pragma once

#include "residual.hpp"

#include <mhar/cpu/aligned_memory.hpp>
#include <mhar/cpu/backend.hpp>
#include <mhar/router/depth_router.hpp>

namespace quickstart {

//! Same members as plain_residual. The library does the work; this class owns the memory and the
//! parameters.
class routed_residual
{
public:
  //! Queries start at zero, so that every call starts as the plain mean of its rows.
  routed_residual(const executor& run, const stack_shape& shape, int num_heads);

  void begin_forward();
  //! Rows live in the router: asked for one after another, each is written in its place.
  [[nodiscard]] view row(int n);
  void forward(int call);
  [[nodiscard]] view input_of(int call) { return inputs_[call]; }

  void begin_backward();
  //! Where the router keeps it, so that it is never copied; it stays there until the next forward.
  [[nodiscard]] view input_gradient(int call);
  void backward(int call);
  [[nodiscard]] view row_gradient(int n) { return row_gradients_[n]; }
  void finish_backward();

  [[nodiscard]] std::vector<parameter*> parameters();
  [[nodiscard]] double seconds() const { return watch_.seconds(); }

  //! @name For those who look on: the gradient check and the picture
  //! @{
  [[nodiscard]] mhar::shape extent() const { return router_.config().extent; }
  [[nodiscard]] int num_calls() const { return static_cast<int>(queries_.size()); }
  [[nodiscard]] mhar::const_rows<float> rows() const
  {
    return mhar::row_list(rows_.data(), router_.config().extent.width);
  }
  [[nodiscard]] mhar::site_parameters site(int call) const;
  [[nodiscard]] const matrix& query_gradient(int call) const
  {
    return queries_[index(call)].gradient;
  }
  [[nodiscard]] const matrix& norm_gradient(int call) const { return norms_[index(call)].gradient; }
  //! @}

private:
  using router = mhar::depth_router<mhar::cpu::backend, float>;
  [[nodiscard]] static std::size_t index(int call) { return static_cast<std::size_t>(call); }
  [[nodiscard]] mhar::router_config configure(const stack_shape& shape, int num_heads) const;
  [[nodiscard]] mhar::matrix as_matrix(view of) const { return {of.data(), of.cols()}; }

  mhar::cpu::context context_;
  std::vector<parameter> queries_;  // [S] of [d]
  std::vector<parameter> norms_;    // [S] of [d]
  router router_;
  mhar::cpu::aligned_memory memory_;
  std::vector<const float*> rows_;       // [S], in the router's memory
  std::vector<float*> input_gradients_;  // [S], in the router's memory
  matrix_stack inputs_;
  matrix_stack row_gradients_;
  stopwatch watch_;
};

}  // namespace quickstart
