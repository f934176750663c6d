// SPDX-License-Identifier: Apache-2.0
//! The causal self-attention sublayer.
#include "attention.hpp"

#include <cmath>

namespace quickstart {
namespace {

const float score_scale = 1 / std::sqrt(static_cast<float>(attention_head_width));

}  // namespace

attention::attention(Eigen::Index num_sequences, Eigen::Index context, Eigen::Index width,
                     random_normal& random)
    : num_sequences_{num_sequences},
      context_{context},
      num_heads_{width / attention_head_width},
      norm_{num_sequences * context, width},
      qkv_{make_weight(width, 3 * width, random)},
      project_{make_weight(width, width, random)},
      normed_(num_sequences * context, width),
      projected_(num_sequences * context, 3 * width),
      gathered_(num_sequences * context, width),
      weights_(static_cast<std::size_t>(num_sequences * num_heads_), matrix(context, context)),
      dprojected_(num_sequences * context, 3 * width),
      dgathered_(num_sequences * context, width)
{
}

//! The columns of one head in the queries (third 0), keys (1) or values (2) of one sequence.
auto attention::head_block(matrix& of, Eigen::Index sequence, Eigen::Index head, int third)
{
  const Eigen::Index column = (third * num_heads_ + head) * attention_head_width;
  return of.block<Eigen::Dynamic, attention_head_width>(sequence * context_, column, context_,
                                                        attention_head_width);
}

matrix& attention::weights(Eigen::Index sequence, Eigen::Index head)
{
  return weights_[static_cast<std::size_t>(sequence * num_heads_ + head)];
}

template <class Visit>
void attention::for_each_head(const executor& run, Visit visit)
{
  for_each(run, static_cast<int>(num_sequences_), [&](int sequence) {
    for (Eigen::Index head = 0; head < num_heads_; ++head) { visit(sequence, head); }
  });
}

void attention::forward_head(Eigen::Index sequence, Eigen::Index head)
{
  matrix& weight = weights(sequence, head);
  weight.noalias() = head_block(projected_, sequence, head, 0) *
                     head_block(projected_, sequence, head, 1).transpose();
  for (Eigen::Index i = 0; i < context_; ++i) {
    auto seen = weight.row(i).head(i + 1).array();
    seen = (score_scale * (seen - seen.maxCoeff())).exp();
    seen /= seen.sum();
    weight.row(i).tail(context_ - i - 1).setZero();
  }
  head_block(gathered_, sequence, head, 0).noalias() =
      weight * head_block(projected_, sequence, head, 2);
}

void attention::backward_head(Eigen::Index sequence, Eigen::Index head)
{
  const matrix& weight = weights(sequence, head);
  const auto dread = head_block(dgathered_, sequence, head, 0);
  head_block(dprojected_, sequence, head, 2).noalias() = weight.transpose() * dread;
  // Through the softmax: dscore = weight * (dweight - <weight, dweight>) row by row, zero where the
  // weight is.
  matrix dscore = dread * head_block(projected_, sequence, head, 2).transpose();
  for (Eigen::Index i = 0; i < context_; ++i) {
    const float mean = weight.row(i).dot(dscore.row(i));
    dscore.row(i).array() = score_scale * weight.row(i).array() * (dscore.row(i).array() - mean);
  }
  head_block(dprojected_, sequence, head, 0).noalias() =
      dscore * head_block(projected_, sequence, head, 1);
  head_block(dprojected_, sequence, head, 1).noalias() =
      dscore.transpose() * head_block(projected_, sequence, head, 0);
}

void attention::forward(const executor& run, input x, output out)
{
  norm_.forward(run, x, normed_);
  multiply(run, normed_, qkv_.value, projected_);
  for_each_head(run,
                [this](Eigen::Index sequence, Eigen::Index head) { forward_head(sequence, head); });
  multiply(run, gathered_, project_.value, out);
}

void attention::backward(const executor& run, input x, input dout, output dx)
{
  multiply_transposed(run, dout, project_.value, dgathered_);
  add_weight_gradient(run, gathered_, dout, project_.gradient);
  for_each_head(
      run, [this](Eigen::Index sequence, Eigen::Index head) { backward_head(sequence, head); });
  add_weight_gradient(run, normed_, dprojected_, qkv_.gradient);
  multiply_transposed(run, dprojected_, qkv_.value, normed_);  // the normed input has been used up
  norm_.backward(run, x, normed_, dx);
}

}  // namespace quickstart
