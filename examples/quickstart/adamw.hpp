// SPDX-License-Identifier: Apache-2.0
//! AdamW with gradient clipping and a warm-up then cosine learning rate.
#pragma once

#include "tensor.hpp"

namespace quickstart {

//! Owns the two moments of every parameter it was given.
class adamw
{
public:
  explicit adamw(std::vector<parameter*> parameters);
  //! One step with the gradients as they are, clipped to a norm of 1 over all parameters; then the
  //! gradients are zero.
  void step(double learning_rate);

private:
  struct moments
  {
    parameter* of;
    matrix first;
    matrix second;
  };
  std::vector<moments> moments_;
  int num_steps_ = 0;
};

//! Rises to `peak` over the first twentieth of the steps, then falls to a tenth of it along a
//! cosine.
[[nodiscard]] double learning_rate(int step, int num_steps, double peak);

}  // namespace quickstart
