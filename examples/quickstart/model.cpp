// SPDX-License-Identifier: Apache-2.0
//! The Transformer's forward and backward: rows are written, calls are made, in depth order and
//! back.
#include "model.hpp"

#include "routed_residual.hpp"

namespace quickstart {

template <class Residual>
model<Residual>::model(const executor& run, const model_shape& shape, Residual& residual,
                       std::uint64_t seed)
    : run_{run},
      shape_{shape},
      residual_{residual},
      characters_{shape.alphabet, shape.width, 0, decay::weight},
      places_{shape.context, shape.width, 0, decay::weight},
      last_norm_{shape.num_positions(), shape.width},
      readout_{shape.width, shape.alphabet},
      normed_(shape.num_positions(), shape.width),
      dnormed_(shape.num_positions(), shape.width),
      logits_(shape.num_positions(), shape.alphabet)
{
  random_normal random{seed};
  for (parameter* const table : {&characters_, &places_}) {
    for (Eigen::Index i = 0; i < table->value.size(); ++i) {
      table->value.data()[i] = 0.5F * random();
    }
  }
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    attentions_.emplace_back(shape.num_sequences, shape.context, shape.width, random);
    mlps_.emplace_back(shape.num_positions(), shape.width, random);
  }
  readout_ = make_weight(shape.width, shape.alphabet, random, 0.5);
}

template <class Residual>
double model<Residual>::forward(const batch& text)
{
  residual_.begin_forward();
  embed(text);
  int call = 0;
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    const auto index = static_cast<std::size_t>(layer);
    residual_.forward(call);
    attentions_[index].forward(run_, residual_.input_of(call), residual_.row(call + 1));
    ++call;
    residual_.forward(call);
    mlps_[index].forward(run_, residual_.input_of(call), residual_.row(call + 1));
    ++call;
  }
  residual_.forward(call);
  last_norm_.forward(run_, residual_.input_of(call), normed_);
  multiply(run_, normed_, readout_.value, logits_);
  return cross_entropy(run_, logits_, text.targets);
}

template <class Residual>
void model<Residual>::backward(const batch& text)
{
  residual_.begin_backward();
  int call = shape_.num_calls() - 1;
  multiply_transposed(run_, logits_, readout_.value, dnormed_);
  add_weight_gradient(run_, normed_, logits_, readout_.gradient);
  last_norm_.backward(run_, residual_.input_of(call), dnormed_, residual_.input_gradient(call));
  residual_.backward(call);
  for (int layer = shape_.num_layers - 1; layer >= 0; --layer) {
    const auto index = static_cast<std::size_t>(layer);
    --call;
    mlps_[index].backward(run_, residual_.input_of(call), residual_.row_gradient(call + 1),
                          residual_.input_gradient(call));
    residual_.backward(call);
    --call;
    attentions_[index].backward(run_, residual_.input_of(call), residual_.row_gradient(call + 1),
                                residual_.input_gradient(call));
    residual_.backward(call);
  }
  residual_.finish_backward();
  embed_backward(text);
}

template <class Residual>
void model<Residual>::embed(const batch& text)
{
  view row = residual_.row(0);
  for (Eigen::Index p = 0; p < row.rows(); ++p) {
    const int character = text.tokens[static_cast<std::size_t>(p)];
    row.row(p) = characters_.value.row(character) + places_.value.row(p % shape_.context);
  }
}

template <class Residual>
void model<Residual>::embed_backward(const batch& text)
{
  const view drow = residual_.row_gradient(0);
  for (Eigen::Index p = 0; p < drow.rows(); ++p) {
    characters_.gradient.row(text.tokens[static_cast<std::size_t>(p)]) += drow.row(p);
    places_.gradient.row(p % shape_.context) += drow.row(p);
  }
}

template <class Residual>
std::vector<parameter*> model<Residual>::parameters()
{
  std::vector<parameter*> all{&characters_, &places_, &last_norm_.gain(), &readout_};
  const auto add = [&all](const std::vector<parameter*>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  for (attention& each : attentions_) { add(each.parameters()); }
  for (mlp& each : mlps_) { add(each.parameters()); }
  add(residual_.parameters());
  return all;
}

template class model<plain_residual>;
template class model<routed_residual>;

}  // namespace quickstart
