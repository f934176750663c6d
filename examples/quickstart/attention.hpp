// SPDX-License-Identifier: Apache-2.0
//! The causal self-attention sublayer: every position looks back along its own sequence.
#pragma once

#include "tensor.hpp"

namespace quickstart {

//! Width of one attention head; the model's width is a multiple of it.
constexpr int attention_head_width = 16;

//! [q k v] = norm(x) qkv
//! out = concat_heads( softmax(q k^T / sqrt(head width), causal) v ) project
class attention
{
public:
  attention(Eigen::Index num_sequences, Eigen::Index context, Eigen::Index width,
            random_normal& random);
  void forward(const executor& run, input x, output out);
  //! Needs the x of the last forward again.
  void backward(const executor& run, input x, input dout, output dx);
  [[nodiscard]] std::vector<parameter*> parameters() { return {&norm_.gain(), &qkv_, &project_}; }

private:
  void forward_head(Eigen::Index sequence, Eigen::Index head);
  void backward_head(Eigen::Index sequence, Eigen::Index head);
  [[nodiscard]] auto head_block(matrix& of, Eigen::Index sequence, Eigen::Index head, int third);
  [[nodiscard]] matrix& weights(Eigen::Index sequence, Eigen::Index head);
  template <class Visit>
  void for_each_head(const executor& run, Visit visit);

  Eigen::Index num_sequences_;
  Eigen::Index context_;
  Eigen::Index num_heads_;
  rms_norm norm_;
  parameter qkv_;
  parameter project_;
  matrix normed_;                // [P, d]
  matrix projected_;             // [P, 3d] queries, keys, values
  matrix gathered_;              // [P, d] what the heads have read
  std::vector<matrix> weights_;  // [sequences * heads] of [context, context]
  matrix dprojected_;
  matrix dgathered_;
};

}  // namespace quickstart
