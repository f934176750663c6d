// SPDX-License-Identifier: Apache-2.0
//! One routing call, forward and backward, on any device: torch's tensors become the library's
//! problems.
#pragma once

#include "tensors.hpp"

#include <mhar/status.hpp>
#include <mhar/types/call.hpp>

#include <ATen/core/List.h>

#include <tuple>
#include <vector>

namespace mhar_torch {

//! What the forward and the backward of a call share, and the memory that its views point to.
template <class T>
struct call
{
  mhar::shape extent;
  mhar::const_rows<T> rows;
  mhar::site_parameters site;
  mhar::output_stage stage;
  std::vector<Tensor> keep;
  std::vector<const T*> list;

  call(at::TensorList tensors, const Tensor& query, int64_t num_heads,
       const optional_tensor& norm_weight, const optional_tensor& bias,
       const optional_tensor& null_source, const optional_tensor& partial,
       const optional_tensor& gate, bool norm, const optional_tensor& output_norm_weight,
       double scale, double eps, double output_norm_eps, int64_t rounding)
  {
    const Tensor& like = tensors.empty() ? *partial : tensors[0];
    const int64_t width = query.numel();
    TORCH_CHECK(width > 0 && like.dim() > 0 && like.size(-1) == width, "mhar: rows of shape ",
                like.sizes(), " do not end in the query's width ", width);
    extent.width = width;
    extent.num_heads = index_of(num_heads, "num_heads");
    extent.num_positions = like.numel() / width;
    bool common = true;
    std::vector<Tensor> matrices;
    for (const Tensor& row : tensors) {
      TORCH_CHECK(row.sizes() == like.sizes() && row.scalar_type() == like.scalar_type() &&
                      row.device() == like.device(),
                  "mhar: rows differ: ", row.sizes(), " of ", row.scalar_type(), " on ",
                  row.device(), " and ", like.sizes(), " of ", like.scalar_type(), " on ",
                  like.device());
      matrices.push_back(as_matrix(row, extent.num_positions, width));
      common = common && stride_of(matrices.back()) == stride_of(matrices.front());
    }
    for (Tensor& matrix : matrices) {
      if (!common) { matrix = matrix.contiguous(); }
      list.push_back(static_cast<const T*>(matrix.const_data_ptr()));
      keep.push_back(matrix);
    }
    rows = mhar::row_list(list.data(), matrices.empty() ? width : stride_of(matrices.front()));

    const int64_t num_sources = static_cast<int64_t>(list.size()) + (null_source ? 1 : 0);
    site.query = array_of(query, "query", width, like.device(), keep);
    site.norm_weight = array_of(norm_weight, "norm_weight", width, like.device(), keep);
    site.bias = array_of(bias, "bias", num_sources, like.device(), keep);
    site.null_source = array_of(null_source, "null_source", width, like.device(), keep);
    site.scale = scale;
    site.eps = eps;
    site.rounding = static_cast<mhar::key_rounding>(rounding);
    stage.gate = array_of(gate, "gate", 1, like.device(), keep);
    stage.norm = norm ? mhar::output_norm::rms : mhar::output_norm::none;
    stage.norm_weight =
        array_of(output_norm_weight, "output_norm_weight", width, like.device(), keep);
    stage.norm_eps = output_norm_eps;
    if (partial) {
      TORCH_CHECK(partial->sizes() == like.sizes() && partial->device() == like.device(),
                  "mhar: partial of shape ", partial->sizes(), " on ", partial->device(),
                  " beside rows of ", like.sizes());
      keep.push_back(as_matrix(*partial, extent.num_positions, width));
      stage.partial = matrix_of(keep.back());
    }
  }
};

template <class T>
inline constexpr at::ScalarType type_of_lse = std::is_same_v<T, double> ? at::kDouble : at::kFloat;

//! Runs a problem with scratch memory from torch's allocator.
template <class Where, class Problem>
void run(const Problem& problem, at::Device device)
{
  const Where here{device};
  auto context = here.context();
  context.workspace_bytes = Where::workspace_bytes(problem, context);
  const Tensor scratch = bytes_on(device, context.workspace_bytes);
  context.workspace = scratch.mutable_data_ptr();
  mhar::check(Where::run(problem, context));
}

inline const Tensor& tensor_like(at::TensorList rows, const optional_tensor& partial)
{
  TORCH_CHECK(!rows.empty() || partial, "mhar: a call without rows needs a partial for its shape");
  return rows.empty() ? *partial : rows[0];
}

template <class Where>
std::tuple<Tensor, Tensor, Tensor, Tensor> route(
    at::TensorList rows, const Tensor& query, int64_t num_heads, const optional_tensor& norm_weight,
    const optional_tensor& bias, const optional_tensor& null_source, const optional_tensor& partial,
    const optional_tensor& gate, bool norm, const optional_tensor& output_norm_weight, double scale,
    double eps, double output_norm_eps, int64_t rounding)
{
  const Tensor& like = tensor_like(rows, partial);
  return with_element(element_of(like), [&](auto element) {
    using T = decltype(element);
    call<T> shared{rows, query, num_heads,          norm_weight, bias, null_source,     partial,
                   gate, norm,  output_norm_weight, scale,       eps,  output_norm_eps, rounding};
    TORCH_CHECK(num_heads > 0 && query.numel() % num_heads == 0, "mhar: ", num_heads,
                " heads do not divide the width ", query.numel());
    const auto plain = like.options();
    auto lse_sizes = like.sizes().vec();
    lse_sizes.back() = num_heads;
    const Tensor y = at::empty(like.sizes(), plain);
    const Tensor lse = at::empty(lse_sizes, plain.dtype(type_of_lse<T>));
    const bool keeps_mix = partial || gate || norm;
    const Tensor mix = keeps_mix ? at::empty(like.sizes(), plain) : at::empty({0}, plain);
    const Tensor combined = norm ? at::empty(like.sizes(), plain) : at::empty({0}, plain);

    mhar::route_problem<T> problem;
    problem.extent = shared.extent;
    problem.num_rows = static_cast<int>(rows.size());
    problem.rows = shared.rows;
    problem.site = shared.site;
    problem.stage = shared.stage;
    problem.outputs.y = output_of(y, shared.extent.width);
    problem.outputs.mix = output_of(mix, shared.extent.width);
    problem.outputs.combined = output_of(combined, shared.extent.width);
    problem.outputs.lse = static_cast<mhar::accumulate_t<T>*>(lse.mutable_data_ptr());
    run<Where>(problem, like.device());
    return std::make_tuple(y, lse, mix, combined);
  });
}

//! Gradients of all rows, then of query, norm_weight, bias, null_source, partial, gate and
//! output_norm_weight, in that order; `wanted` has one entry for each, and what is not wanted is
//! an empty tensor.
template <class Where>
std::vector<Tensor> route_backward(const Tensor& dy, at::TensorList rows, const Tensor& query,
                                   int64_t num_heads, const optional_tensor& norm_weight,
                                   const optional_tensor& bias, const optional_tensor& null_source,
                                   const optional_tensor& partial, const optional_tensor& gate,
                                   bool norm, const optional_tensor& output_norm_weight,
                                   double scale, double eps, double output_norm_eps,
                                   int64_t rounding, const Tensor& lse, const Tensor& mix,
                                   const Tensor& combined, c10::List<bool> wanted)
{
  const Tensor& like = tensor_like(rows, partial);
  const std::size_t n = rows.size();
  TORCH_CHECK(wanted.size() == n + 7, "mhar: wanted has ", wanted.size(), " entries");
  return with_element(element_of(like), [&](auto element) {
    using T = decltype(element);
    call<T> shared{rows, query, num_heads,          norm_weight, bias, null_source,     partial,
                   gate, norm,  output_norm_weight, scale,       eps,  output_norm_eps, rounding};
    const int64_t width = shared.extent.width;
    std::vector<Tensor> gradients;
    const auto add = [&](std::size_t index, const Tensor& of) {
      gradients.push_back(wanted.get(index) ? at::empty(of.sizes(), of.options())
                                            : at::empty({0}, of.options()));
    };
    for (std::size_t i = 0; i < n; ++i) { add(i, rows[i]); }
    const optional_tensor inputs[] = {query, norm_weight,       bias, null_source, partial,
                                      gate,  output_norm_weight};
    for (std::size_t i = 0; i < 7; ++i) { add(n + i, inputs[i] ? *inputs[i] : query); }
    const auto array = [&](std::size_t i) {
      return wanted.get(n + i) ? gradient_of(gradients[n + i]) : mhar::array{};
    };
    const Tensor upstream = as_matrix(dy, shared.extent.num_positions, width);
    const Tensor the_mix =
        mix.numel() > 0 ? as_matrix(mix, shared.extent.num_positions, width) : mix;
    const Tensor o =
        combined.numel() > 0 ? as_matrix(combined, shared.extent.num_positions, width) : combined;
    TORCH_CHECK(lse.numel() == shared.extent.num_positions * num_heads &&
                    lse.scalar_type() == type_of_lse<T> && lse.device() == like.device(),
                "mhar: lse of ", lse.sizes(), " ", lse.scalar_type(), " on ", lse.device(),
                " for rows of ", like.sizes(), " on ", like.device(), " and ", num_heads, " heads");
    const Tensor the_lse = lse.contiguous();

    mhar::route_gradient_problem<T> problem;
    problem.extent = shared.extent;
    problem.num_rows = static_cast<int>(n);
    problem.rows = shared.rows;
    problem.site = shared.site;
    problem.stage = shared.stage;
    problem.output_gradient = matrix_of(upstream);
    problem.lse = static_cast<const mhar::accumulate_t<T>*>(the_lse.const_data_ptr());
    if (the_mix.numel() > 0) { problem.mix = matrix_of(the_mix); }
    if (o.numel() > 0) { problem.combined = matrix_of(o); }
    std::vector<void*> list(n, nullptr);
    for (std::size_t i = 0; i < n; ++i) {
      if (wanted.get(i)) { list[i] = gradients[i].mutable_data_ptr(); }
    }
    if (n > 0) {
      problem.row_gradients.list = list.data();
      problem.row_gradients.type = element_of(like);
      problem.row_gradients.position_stride = width;
    }
    problem.gradients.query = array(0);
    problem.gradients.norm_weight = array(1);
    problem.gradients.bias = array(2);
    problem.gradients.null_source = array(3);
    if (wanted.get(n + 4)) { problem.partial_gradient = output_of(gradients[n + 4], width); }
    problem.gradients.gate = array(5);
    problem.gradients.output_norm_weight = array(6);
    run<Where>(problem, like.device());
    return gradients;
  });
}

}  // namespace mhar_torch
