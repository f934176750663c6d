// SPDX-License-Identifier: Apache-2.0
//! The router's operators. A pass is the storage of a tensor, so that it lives as long as a node of
//! the graph holds it; empty tensors, the tokens, chain its steps in the order of the forward.
#pragma once

#include "depth_pass.hpp"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

namespace mhar_torch {

inline void delete_pass(void* pass) { delete static_cast<depth_pass*>(pass); }

inline Tensor hold(std::unique_ptr<depth_pass> pass)
{
  depth_pass* const raw = pass.release();
  return at::for_blob(raw, {static_cast<int64_t>(sizeof(void*))})
      .context(raw, &delete_pass)
      .options(at::kByte)
      .make_tensor();
}

inline depth_pass& pass_of(const Tensor& state)
{
  const c10::DataPtr& data = state.storage().data_ptr();
  TORCH_CHECK(data.get_deleter() == &delete_pass, "mhar: this tensor holds no pass");
  return *static_cast<depth_pass*>(data.get_context());
}

inline Tensor token_of(const depth_pass& pass) { return at::empty({0}, pass.options()); }

enum class arrangement : int64_t
{
  full,
  block,
  delta
};

inline mhar::depth_schedule schedule_of(arrangement kind, int num_calls, int calls_per_block)
{
  switch (kind) {
    case arrangement::block: return mhar::block_schedule(num_calls, calls_per_block);
    case arrangement::delta: return mhar::delta_schedule(num_calls, calls_per_block);
    default: return mhar::full_schedule(num_calls);
  }
}

//! The cheapest plan, searched once for every shape.
inline mhar::depth_plan plan_of(arrangement kind, int num_calls, int calls_per_block,
                                const mhar::shape& extent, mhar::element rows, mhar::element states)
{
  using key =
      std::tuple<arrangement, int, int, int64_t, int64_t, int, mhar::element, mhar::element>;
  static std::mutex mutex;
  static std::map<key, mhar::depth_plan> plans;
  const std::lock_guard<std::mutex> lock{mutex};
  const key shape{
      kind, num_calls, calls_per_block, extent.num_positions, extent.width, extent.num_heads,
      rows, states};
  auto found = plans.find(shape);
  if (found == plans.end()) {
    const mhar::plan_costs costs = mhar::gpu_costs_of(extent, rows, states, states);
    const auto schedule = schedule_of(kind, num_calls, calls_per_block);
    found = plans.emplace(shape, mhar::cheapest_plan(schedule, costs)).first;
  }
  return found->second;
}

//! Parameters of all calls stacked, in this order; bias [S, sources of the last call].
struct stacked_parameters
{
  const Tensor& query;
  const optional_tensor& norm_weight;
  const optional_tensor& bias;
  const optional_tensor& null_source;
  const optional_tensor& gate;
  const optional_tensor& output_norm_weight;
};

//! A slice of a stacked array.
template <class Array, class Stacked>
Array slice_of(const Stacked& stacked, int64_t index, int64_t count)
{
  if (stacked.data == nullptr) { return {}; }
  auto* const data = const_cast<char*>(static_cast<const char*>(stacked.data));
  return {data + index * count * mhar::size_of(stacked.type), stacked.type};
}

template <class Where>
std::tuple<Tensor, Tensor> router_begin(
    at::IntArrayRef sizes, at::ScalarType dtype, int64_t kind, int64_t calls_per_block,
    int64_t num_heads, const Tensor& query, const optional_tensor& norm_weight,
    const optional_tensor& bias, const optional_tensor& null_source, const optional_tensor& gate,
    bool norm, const optional_tensor& output_norm_weight, double scale, double eps,
    double output_norm_eps, at::ScalarType states, bool training, bool reuse_rows)
{
  TORCH_CHECK(
      query.dim() == 2 && query.numel() > 0 && !sizes.empty() && sizes.back() == query.size(1),
      "mhar: query of ", query.sizes(), " for rows of ", sizes);
  const int num_calls = static_cast<int>(query.size(0));
  mhar::router_config config;
  config.extent.width = query.size(1);
  config.extent.num_heads = index_of(num_heads, "heads");
  config.extent.num_positions = c10::multiply_integers(sizes) / query.size(1);
  TORCH_CHECK(num_heads > 0 && query.size(1) % num_heads == 0, "mhar: ", num_heads,
              " heads do not divide the width ", query.size(1));
  config.call_state = config.row_state = element_of(states);
  config.plan = plan_of(static_cast<arrangement>(kind), num_calls,
                        index_of(calls_per_block, "calls_per_block"), config.extent,
                        element_of(dtype), config.call_state);
  config.use = training ? mhar::router_use::training : mhar::router_use::inference;
  config.recompute_calls = training ? 1 : 0;
  if (training && reuse_rows) { config.gradients = mhar::gradient_home::dead_rows; }

  std::vector<Tensor> keep;
  const auto stacked = [&](const optional_tensor& tensor, const char* name, int64_t count) {
    return array_of(tensor, name, num_calls * count, query.device(), keep);
  };
  const int64_t width = query.size(1);
  const int64_t num_bias = bias ? bias->numel() / num_calls : 0;
  const auto queries = stacked(query, "query", width);
  const auto norm_weights = stacked(norm_weight, "norm_weight", width);
  const auto biases = stacked(bias, "bias", num_bias);
  const auto null_sources = stacked(null_source, "null_source", width);
  const auto gates = stacked(gate, "gate", 1);
  const auto output_norm_weights = stacked(output_norm_weight, "output_norm_weight", width);
  for (int call = 0; call < num_calls; ++call) {
    mhar::router_site site;
    site.parameters.query = slice_of<mhar::const_array>(queries, call, width);
    site.parameters.norm_weight = slice_of<mhar::const_array>(norm_weights, call, width);
    site.parameters.bias = slice_of<mhar::const_array>(biases, call, num_bias);
    site.parameters.null_source = slice_of<mhar::const_array>(null_sources, call, width);
    site.parameters.scale = scale;
    site.parameters.eps = eps;
    site.stage.gate = slice_of<mhar::const_array>(gates, call, 1);
    site.stage.norm = norm ? mhar::output_norm::rms : mhar::output_norm::none;
    site.stage.norm_weight = slice_of<mhar::const_array>(output_norm_weights, call, width);
    site.stage.norm_eps = output_norm_eps;
    config.sites.push_back(site);
  }
  const auto options = at::TensorOptions(dtype).device(query.device());
  std::unique_ptr<depth_pass> pass = with_element(element_of(dtype), [&](auto element) {
    using pass_type = depth_pass_on<Where, decltype(element)>;
    return std::unique_ptr<depth_pass>{
        new pass_type{std::move(config), sizes, options, std::move(keep)}};
  });
  Tensor token = token_of(*pass);
  return {hold(std::move(pass)), token};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> router_read(const Tensor& state, const Tensor&,
                                                              int64_t call, at::IntArrayRef sizes,
                                                              bool with_mix, bool with_combined,
                                                              const optional_tensor& private_row,
                                                              const optional_tensor& partial)
{
  depth_pass& pass = pass_of(state);
  const auto output = [&](bool wanted) {
    return wanted ? at::empty(sizes, pass.options()) : at::empty({0}, pass.options());
  };
  call_tensors tensors;
  tensors.y = output(true);
  const Tensor mix = output(with_mix);
  const Tensor combined = output(with_combined);
  if (with_mix) { tensors.mix = mix; }
  if (with_combined) { tensors.combined = combined; }
  tensors.private_row = private_row.value_or(Tensor{});
  tensors.partial = partial.value_or(Tensor{});
  pass.read(index_of(call, "site"), tensors);
  return {tensors.y, mix, combined, token_of(pass)};
}

//! Gradients of the private row and of the partial; empty where there is none or none is wanted.
inline std::tuple<Tensor, Tensor, Tensor> router_read_backward(
    const Tensor& state, const Tensor&, int64_t call, const Tensor& dy, const Tensor& mix,
    const optional_tensor& combined, const optional_tensor& private_row, bool wants_private,
    bool wants_partial)
{
  depth_pass& pass = pass_of(state);
  const auto output = [&](bool wanted) {
    return wanted ? at::empty(dy.sizes(), pass.options()) : at::empty({0}, pass.options());
  };
  const Tensor private_gradient = output(wants_private);
  const Tensor partial_gradient = output(wants_partial);
  call_tensors tensors;
  tensors.y = dy;
  tensors.mix = mix;
  tensors.combined = combined.value_or(Tensor{});
  tensors.private_row = private_row.value_or(Tensor{});
  if (wants_private) { tensors.private_gradient = private_gradient; }
  if (wants_partial) { tensors.partial_gradient = partial_gradient; }
  pass.read_backward(index_of(call, "site"), tensors);
  return {private_gradient, partial_gradient, token_of(pass)};
}

inline Tensor router_write(const Tensor& state, const Tensor&, int64_t row, const Tensor& value)
{
  depth_pass& pass = pass_of(state);
  pass.write(index_of(row, "row"), value);
  return token_of(pass);
}

inline Tensor router_write_linear(const Tensor& state, const Tensor&, int64_t row, const Tensor& x,
                                  const Tensor& weight)
{
  depth_pass& pass = pass_of(state);
  pass.write_linear(index_of(row, "row"), x, weight);
  return token_of(pass);
}

inline std::tuple<Tensor, Tensor> router_write_backward(const Tensor& state, const Tensor&,
                                                        int64_t row, at::IntArrayRef sizes,
                                                        bool wanted)
{
  depth_pass& pass = pass_of(state);
  const Tensor gradient =
      wanted ? at::empty(sizes, pass.options()) : at::empty({0}, pass.options());
  pass.write_backward(index_of(row, "row"), wanted ? gradient : Tensor{});
  return {gradient, token_of(pass)};
}

//! Gradients of the parameters, stacked as they are; empty where there is none or none is wanted.
inline std::vector<Tensor> router_begin_backward(
    const Tensor& state, const Tensor&, const Tensor& query, const optional_tensor& norm_weight,
    const optional_tensor& bias, const optional_tensor& null_source, const optional_tensor& gate,
    const optional_tensor& output_norm_weight, c10::List<bool> wanted)
{
  depth_pass& pass = pass_of(state);
  const int64_t num_calls = query.size(0);
  const optional_tensor parameters[] = {query,       norm_weight, bias,
                                        null_source, gate,        output_norm_weight};
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < 6; ++i) {
    // A bias has entries of rows that its call does not read.
    gradients.push_back(wanted.get(i) ? at::zeros(parameters[i]->sizes(), parameters[i]->options())
                                      : at::empty({0}, query.options()));
  }
  std::vector<mhar::site_gradients> sites(static_cast<std::size_t>(num_calls));
  for (std::size_t call = 0; call < sites.size(); ++call) {
    mhar::array* const targets[] = {&sites[call].query, &sites[call].norm_weight,
                                    &sites[call].bias,  &sites[call].null_source,
                                    &sites[call].gate,  &sites[call].output_norm_weight};
    for (std::size_t i = 0; i < 6; ++i) {
      if (!wanted.get(i)) { continue; }
      *targets[i] = slice_of<mhar::array>(gradient_of(gradients[i]), static_cast<int64_t>(call),
                                          gradients[i].numel() / num_calls);
    }
  }
  pass.finish_backward(sites);
  return gradients;
}

inline std::tuple<Tensor, Tensor> router_gradient_place(const Tensor& state, int64_t call)
{
  return pass_of(state).gradient_place(index_of(call, "site"));
}

inline Tensor router_row(const Tensor& state, int64_t row)
{
  return pass_of(state).row(index_of(row, "row"));
}

}  // namespace mhar_torch
