// SPDX-License-Identifier: Apache-2.0
//! The router's operators as nodes of autograd's graph. Tokens make the backward visit the steps of
//! a pass in the opposite order; saved tensors keep the pass alive as long as a backward may come.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using c10::SymIntArrayRef;
using optional_tensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

//! Calls an operator through the dispatcher, so that compilers can trace it.
template <class Signature, class... Arguments>
decltype(auto) call(const char* name, Arguments&&... arguments)
{
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Signature>().call(
      std::forward<Arguments>(arguments)...);
}

using begin_type = std::tuple<Tensor, Tensor>(SymIntArrayRef, at::ScalarType, int64_t, int64_t,
                                              int64_t, const Tensor&, const optional_tensor&,
                                              const optional_tensor&, const optional_tensor&,
                                              const optional_tensor&, bool, const optional_tensor&,
                                              double, double, double, at::ScalarType, bool, bool);
using begin_backward_type = std::vector<Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                const optional_tensor&, const optional_tensor&,
                                                const optional_tensor&, const optional_tensor&,
                                                const optional_tensor&, c10::List<bool>);
using write_type = Tensor(const Tensor&, const Tensor&, int64_t, const Tensor&);
using write_linear_type = Tensor(const Tensor&, const Tensor&, int64_t, const Tensor&,
                                 const Tensor&);
using write_backward_type = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, int64_t,
                                                       SymIntArrayRef, bool);
using read_type = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, int64_t,
                                                             SymIntArrayRef, bool, bool,
                                                             const optional_tensor&,
                                                             const optional_tensor&);
using read_backward_type = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, int64_t,
                                                              const Tensor&, const Tensor&,
                                                              const optional_tensor&,
                                                              const optional_tensor&, bool, bool);

optional_tensor if_defined(const Tensor& tensor)
{
  return tensor.defined() ? optional_tensor{tensor} : std::nullopt;
}

//! The gradient of a token: of the step that follows, or a new one where none has a gradient.
Tensor token_of(const Tensor& gradient, const Tensor& like)
{
  return gradient.defined() ? gradient : at::empty({0}, like.options());
}

Tensor positions_of(const Tensor& tensor)
{
  return tensor.dim() > 1 ? tensor.flatten(0, -2) : tensor.unsqueeze(0);
}

//! Which optional inputs of a node want a gradient: absent ones have no edge.
class edge_counter
{
public:
  explicit edge_counter(const AutogradContext* graph, std::size_t first = 0)
      : graph_{graph}, next_{first}
  {
  }
  bool wanted(bool is_present) { return is_present && graph_->needs_input_grad(next_++); }

private:
  const AutogradContext* graph_;
  std::size_t next_;
};

class begin : public torch::autograd::Function<begin>
{
public:
  static variable_list forward(AutogradContext* graph, SymIntArrayRef sizes, at::ScalarType dtype,
                               int64_t arrangement, int64_t calls_per_block, int64_t num_heads,
                               const Tensor& query, const optional_tensor& norm_weight,
                               const optional_tensor& bias, const optional_tensor& null_source,
                               const optional_tensor& gate, bool norm,
                               const optional_tensor& output_norm_weight, double scale, double eps,
                               double output_norm_eps, at::ScalarType states, bool training,
                               bool reuse_rows)
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [state, token] = call<begin_type>("mhar::router_begin", sizes, dtype, arrangement,
                                           calls_per_block, num_heads, query, norm_weight, bias,
                                           null_source, gate, norm, output_norm_weight, scale, eps,
                                           output_norm_eps, states, training, reuse_rows);
    graph->mark_non_differentiable({state});
    graph->set_materialize_grads(false);
    const auto or_none = [](const optional_tensor& tensor) { return tensor.value_or(Tensor{}); };
    graph->save_for_backward({state, query, or_none(norm_weight), or_none(bias),
                              or_none(null_source), or_none(gate), or_none(output_norm_weight)});
    return {state, token};
  }

  static variable_list backward(AutogradContext* graph, variable_list gradients)
  {
    const variable_list saved = graph->get_saved_variables();
    edge_counter edges{graph};
    c10::List<bool> wanted;
    for (std::size_t i = 0; i < 6; ++i) { wanted.push_back(edges.wanted(saved[1 + i].defined())); }
    const std::vector<Tensor> out = call<begin_backward_type>(
        "mhar::router_begin_backward", saved[0], token_of(gradients[1], saved[1]), saved[1],
        if_defined(saved[2]), if_defined(saved[3]), if_defined(saved[4]), if_defined(saved[5]),
        if_defined(saved[6]), wanted);
    constexpr std::size_t places[] = {5, 6, 7, 8, 9, 11};  // among the arguments of forward
    variable_list result(18);
    for (std::size_t i = 0; i < 6; ++i) {
      if (wanted.get(i)) { result[places[i]] = out[i]; }
    }
    return result;
  }
};

class write : public torch::autograd::Function<write>
{
public:
  static Tensor forward(AutogradContext* graph, const Tensor& state, const Tensor& token,
                        int64_t row, const Tensor& value)
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    graph->set_materialize_grads(false);
    graph->save_for_backward({state, token});
    graph->saved_data["row"] = row;
    graph->saved_data["sizes"] = value.sym_sizes();
    return call<write_type>("mhar::router_write", state, token, row, value);
  }

  static variable_list backward(AutogradContext* graph, variable_list gradients)
  {
    const variable_list saved = graph->get_saved_variables();
    const bool wanted = graph->needs_input_grad(2);
    const auto sizes = graph->saved_data["sizes"].toSymIntVector();
    auto [gradient, token] = call<write_backward_type>(
        "mhar::router_write_backward", saved[0], token_of(gradients[0], saved[1]),
        graph->saved_data["row"].toInt(), SymIntArrayRef{sizes}, wanted);
    return {{}, token, {}, wanted ? gradient : Tensor{}};
  }
};

//! Saves the product a copy: it is computed in its row's place.
class write_linear : public torch::autograd::Function<write_linear>
{
public:
  static Tensor forward(AutogradContext* graph, const Tensor& state, const Tensor& token,
                        int64_t row, const Tensor& x, const Tensor& weight)
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    graph->set_materialize_grads(false);
    graph->save_for_backward({state, token, x, weight});
    graph->saved_data["row"] = row;
    return call<write_linear_type>("mhar::router_write_linear", state, token, row, x, weight);
  }

  static variable_list backward(AutogradContext* graph, variable_list gradients)
  {
    const variable_list saved = graph->get_saved_variables();
    const Tensor& x = saved[2];
    const Tensor& weight = saved[3];
    const bool wants_x = graph->needs_input_grad(2);
    const bool wants_weight = graph->needs_input_grad(3);
    std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
    sizes.back() = weight.sym_size(0);
    auto [gradient, token] = call<write_backward_type>(
        "mhar::router_write_backward", saved[0], token_of(gradients[0], saved[1]),
        graph->saved_data["row"].toInt(), SymIntArrayRef{sizes}, wants_x || wants_weight);
    variable_list result(5);
    result[1] = token;
    if (wants_x) { result[3] = at::matmul(gradient, weight); }
    if (wants_weight) { result[4] = at::mm(positions_of(gradient).t(), positions_of(x)); }
    return result;
  }
};

class read : public torch::autograd::Function<read>
{
public:
  static variable_list forward(AutogradContext* graph, const Tensor& state, const Tensor& token,
                               int64_t site, SymIntArrayRef sizes, bool with_mix,
                               bool with_combined, const optional_tensor& private_row,
                               const optional_tensor& partial)
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [y, mix, combined, next] = call<read_type>("mhar::router_read", state, token, site, sizes,
                                                    with_mix, with_combined, private_row, partial);
    graph->mark_non_differentiable({mix, combined});
    graph->set_materialize_grads(false);
    graph->save_for_backward({state, with_mix ? mix : y, with_combined ? combined : Tensor{},
                              private_row.value_or(Tensor{})});
    graph->saved_data["site"] = site;
    graph->saved_data["with_partial"] = partial.has_value();
    return {y, mix, combined, next};
  }

  static variable_list backward(AutogradContext* graph, variable_list gradients)
  {
    const variable_list saved = graph->get_saved_variables();
    edge_counter edges{graph, 2};
    const bool wants_private = edges.wanted(saved[3].defined());
    const bool wants_partial = edges.wanted(graph->saved_data["with_partial"].toBool());
    // No loss reaches what was read: a zero of its shape.
    const Tensor dy = gradients[0].defined()
                          ? gradients[0]
                          : at::zeros({1}, saved[1].options()).expand_symint(saved[1].sym_sizes());
    auto [private_gradient, partial_gradient, token] = call<read_backward_type>(
        "mhar::router_read_backward", saved[0], token_of(gradients[3], saved[1]),
        graph->saved_data["site"].toInt(), dy, saved[1], if_defined(saved[2]), if_defined(saved[3]),
        wants_private, wants_partial);
    variable_list result(8);
    result[1] = token;
    if (wants_private) { result[6] = private_gradient; }
    if (wants_partial) { result[7] = partial_gradient; }
    return result;
  }
};

std::tuple<Tensor, Tensor> router_begin(
    SymIntArrayRef sizes, at::ScalarType dtype, int64_t arrangement, int64_t calls_per_block,
    int64_t num_heads, const Tensor& query, const optional_tensor& norm_weight,
    const optional_tensor& bias, const optional_tensor& null_source, const optional_tensor& gate,
    bool norm, const optional_tensor& output_norm_weight, double scale, double eps,
    double output_norm_eps, at::ScalarType states, bool training, bool reuse_rows)
{
  const auto out = begin::apply(sizes, dtype, arrangement, calls_per_block, num_heads, query,
                                norm_weight, bias, null_source, gate, norm, output_norm_weight,
                                scale, eps, output_norm_eps, states, training, reuse_rows);
  return {out[0], out[1]};
}

Tensor router_write_linear(const Tensor& state, const Tensor& token, int64_t row, const Tensor& x,
                           const Tensor& weight)
{
  return write_linear::apply(state, token, row, x, weight);
}

Tensor router_write(const Tensor& state, const Tensor& token, int64_t row, const Tensor& value)
{
  return write::apply(state, token, row, value);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> router_read(const Tensor& state, const Tensor& token,
                                                       int64_t site, SymIntArrayRef sizes,
                                                       bool with_mix, bool with_combined,
                                                       const optional_tensor& private_row,
                                                       const optional_tensor& partial)
{
  const auto out =
      read::apply(state, token, site, sizes, with_mix, with_combined, private_row, partial);
  return {out[0], out[1], out[2], out[3]};
}

}  // namespace

TORCH_LIBRARY_IMPL(mhar, Autograd, library)
{
  library.impl("router_begin", &router_begin);
  library.impl("router_write", &router_write);
  library.impl("router_write_linear", &router_write_linear);
  library.impl("router_read", &router_read);
  for (const char* name :
       {"router_begin_backward", "router_write_backward", "router_read_backward"}) {
    library.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}
