// SPDX-License-Identifier: Apache-2.0
//! The feed-forward sublayer: norm, four times wider, SiLU, back.
#pragma once

#include "tensor.hpp"

namespace quickstart {

//! out = silu(norm(x) up) down
class mlp
{
public:
  mlp(Eigen::Index num_positions, Eigen::Index width, random_normal& random);
  void forward(const executor& run, input x, output out);
  //! Needs the x of the last forward again.
  void backward(const executor& run, input x, input dout, output dx);
  [[nodiscard]] std::vector<parameter*> parameters() { return {&norm_.gain(), &up_, &down_}; }

private:
  rms_norm norm_;
  parameter up_;
  parameter down_;
  matrix normed_;  // [P, d]
  matrix wide_;    // [P, 4d] before the SiLU
  matrix active_;  // [P, 4d] after it
  matrix dwide_;
};

}  // namespace quickstart
