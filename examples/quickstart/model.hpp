// SPDX-License-Identifier: Apache-2.0
//! A character-level Transformer whose residual scheme is a template argument.
#pragma once

#include "attention.hpp"
#include "mlp.hpp"
#include "residual.hpp"
#include "text.hpp"

namespace quickstart {

//! Sizes of a model and of the batches it takes.
struct model_shape
{
  int num_layers = 6;
  int width = 64;
  int num_sequences = 8;
  int context = 64;
  int alphabet = 0;

  [[nodiscard]] Eigen::Index num_positions() const { return Eigen::Index{num_sequences} * context; }
  //! Two sublayers a layer, and the output layer.
  [[nodiscard]] int num_calls() const { return 2 * num_layers + 1; }
  [[nodiscard]] stack_shape stack() const { return {num_positions(), width, num_calls()}; }
};

//! Embedding, layers of attention and MLP, output layer. Residual is plain_residual or
//! routed_residual.
template <class Residual>
class model
{
public:
  //! Everything but the residual scheme starts the same for the same seed.
  model(const executor& run, const model_shape& shape, Residual& residual, std::uint64_t seed);

  //! The loss of a batch; logits become their gradient.
  [[nodiscard]] double forward(const batch& text);
  //! Adds to the gradients of all parameters; after forward with the same batch.
  void backward(const batch& text);
  [[nodiscard]] std::vector<parameter*> parameters();

private:
  void embed(const batch& text);
  void embed_backward(const batch& text);

  executor run_;
  model_shape shape_;
  Residual& residual_;
  parameter characters_;  // [alphabet, d]
  parameter places_;      // [context, d]
  std::vector<attention> attentions_;
  std::vector<mlp> mlps_;
  rms_norm last_norm_;
  parameter readout_;  // [d, alphabet]
  matrix normed_;
  matrix dnormed_;
  matrix logits_;
};

}  // namespace quickstart
