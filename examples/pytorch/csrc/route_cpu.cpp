// SPDX-License-Identifier: Apache-2.0
//! The PyTorch operators of one routing call on CPU tensors: torch's tensors become the library's
//! problems, and what it refuses becomes a RuntimeError.
#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <vector>

namespace {

using at::Tensor;
using optional_tensor = std::optional<Tensor>;

mhar::element element_of(const Tensor& tensor)
{
  switch (tensor.scalar_type()) {
    case at::kBFloat16: return mhar::element::bfloat16;
    case at::kHalf: return mhar::element::float16;
    case at::kFloat: return mhar::element::float32;
    case at::kDouble: return mhar::element::float64;
    default: TORCH_CHECK(false, "mhar: no element type for ", tensor.scalar_type());
  }
}

//! An array of `count` elements; `keep` holds what has to be copied to become contiguous.
mhar::const_array array_of(const optional_tensor& tensor, const char* name, int64_t count,
                           std::vector<Tensor>& keep)
{
  if (!tensor) { return {}; }
  TORCH_CHECK(tensor->numel() == count, "mhar: ", name, " has ", tensor->numel(),
              " elements, expected ", count);
  TORCH_CHECK(tensor->is_cpu(), "mhar: ", name, " is on ", tensor->device(), ", the rows on cpu");
  keep.push_back(tensor->contiguous());
  return {keep.back().const_data_ptr(), element_of(*tensor)};
}

//! [P, d] with unit stride along d; a copy only where the strides allow no such view.
Tensor as_matrix(const Tensor& tensor, int64_t num_positions, int64_t width)
{
  Tensor matrix = tensor.reshape({num_positions, width});
  return matrix.stride(1) == 1 || width == 1 ? matrix : matrix.contiguous();
}

int64_t stride_of(const Tensor& matrix)
{
  return matrix.size(0) > 1 ? matrix.stride(0) : matrix.size(1);
}

mhar::const_matrix matrix_of(const Tensor& matrix)
{
  return {matrix.const_data_ptr(), element_of(matrix), stride_of(matrix)};
}

mhar::matrix output_of(const Tensor& tensor, int64_t width)
{
  if (tensor.numel() == 0) { return {}; }
  return {tensor.mutable_data_ptr(), element_of(tensor), width};
}

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
    extent.num_heads = static_cast<int>(num_heads);
    extent.num_positions = like.numel() / width;
    bool common = true;
    std::vector<Tensor> matrices;
    for (const Tensor& row : tensors) {
      TORCH_CHECK(row.sizes() == like.sizes() && row.scalar_type() == like.scalar_type(),
                  "mhar: rows differ: ", row.sizes(), " of ", row.scalar_type(), " and ",
                  like.sizes(), " of ", like.scalar_type());
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
    site.query = array_of(query, "query", width, keep);
    site.norm_weight = array_of(norm_weight, "norm_weight", width, keep);
    site.bias = array_of(bias, "bias", num_sources, keep);
    site.null_source = array_of(null_source, "null_source", width, keep);
    site.scale = scale;
    site.eps = eps;
    site.rounding = static_cast<mhar::key_rounding>(rounding);
    stage.gate = array_of(gate, "gate", 1, keep);
    stage.norm = norm ? mhar::output_norm::rms : mhar::output_norm::none;
    stage.norm_weight = array_of(output_norm_weight, "output_norm_weight", width, keep);
    stage.norm_eps = output_norm_eps;
    if (partial) {
      TORCH_CHECK(partial->sizes() == like.sizes() && partial->is_cpu(), "mhar: partial of shape ",
                  partial->sizes(), " on ", partial->device(), " beside rows of ", like.sizes());
      keep.push_back(as_matrix(*partial, extent.num_positions, width));
      stage.partial = matrix_of(keep.back());
    }
  }
};

//! Runs a verb on torch's own threads, with scratch memory from torch's allocator.
template <class Verb, class Problem>
void run(const Verb& verb, const Problem& problem)
{
  mhar::cpu::context where;
  where.run.parallel_for = [](void*, int count, mhar::cpu::executor::task task, void* argument) {
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) { task(argument, static_cast<int>(i)); }
    });
  };
  const auto bytes = mhar::cpu::workspace_bytes(problem, where);
  const Tensor scratch = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  where.workspace = scratch.mutable_data_ptr();
  where.workspace_bytes = bytes;
  mhar::check(verb(problem, where));
}

template <class Function>
auto with_element(const Tensor& like, const Function& function)
{
  switch (element_of(like)) {
    case mhar::element::bfloat16: return function(mhar::bfloat16{});
    case mhar::element::float16: return function(mhar::float16{});
    case mhar::element::float32: return function(float{});
    default: return function(double{});
  }
}

const Tensor& tensor_like(at::TensorList rows, const optional_tensor& partial)
{
  TORCH_CHECK(!rows.empty() || partial, "mhar: a call without rows needs a partial for its shape");
  return rows.empty() ? *partial : rows[0];
}

std::tuple<Tensor, Tensor, Tensor, Tensor> route(
    at::TensorList rows, const Tensor& query, int64_t num_heads, const optional_tensor& norm_weight,
    const optional_tensor& bias, const optional_tensor& null_source, const optional_tensor& partial,
    const optional_tensor& gate, bool norm, const optional_tensor& output_norm_weight, double scale,
    double eps, double output_norm_eps, int64_t rounding)
{
  const Tensor& like = tensor_like(rows, partial);
  return with_element(like, [&](auto element) {
    using T = decltype(element);
    call<T> shared{rows, query, num_heads,          norm_weight, bias, null_source,     partial,
                   gate, norm,  output_norm_weight, scale,       eps,  output_norm_eps, rounding};
    TORCH_CHECK(num_heads > 0 && query.numel() % num_heads == 0, "mhar: ", num_heads,
                " heads do not divide the width ", query.numel());
    const auto plain = like.options();
    auto lse_sizes = like.sizes().vec();
    lse_sizes.back() = num_heads;
    const Tensor y = at::empty(like.sizes(), plain);
    const Tensor lse =
        at::empty(lse_sizes, plain.dtype(std::is_same_v<T, double> ? at::kDouble : at::kFloat));
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
    run([](const auto& p, const auto& where) { return mhar::cpu::route(p, where); }, problem);
    return std::make_tuple(y, lse, mix, combined);
  });
}

//! Gradients of all rows, then of query, norm_weight, bias, null_source, partial, gate and
//! output_norm_weight, in that order; `wanted` has one entry for each, and what is not wanted is
//! an empty tensor.
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
  return with_element(like, [&](auto element) {
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
    const auto array = [&](std::size_t i) -> mhar::array {
      const Tensor& tensor = gradients[n + i];
      if (!wanted.get(n + i)) { return {}; }
      return {tensor.mutable_data_ptr(), element_of(tensor)};
    };
    const Tensor upstream = as_matrix(dy, shared.extent.num_positions, width);
    const Tensor the_mix =
        mix.numel() > 0 ? as_matrix(mix, shared.extent.num_positions, width) : mix;
    const Tensor o =
        combined.numel() > 0 ? as_matrix(combined, shared.extent.num_positions, width) : combined;
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
    run([](const auto& p, const auto& where) { return mhar::cpu::route_gradient(p, where); },
        problem);
    return gradients;
  });
}

}  // namespace

TORCH_LIBRARY(mhar, library)
{
  library.def(
      "route(Tensor[] rows, Tensor query, int num_heads, Tensor? norm_weight, Tensor? bias, "
      "Tensor? null_source, Tensor? partial, Tensor? gate, bool output_norm, "
      "Tensor? output_norm_weight, float scale, float eps, float output_norm_eps, int rounding) "
      "-> (Tensor y, Tensor lse, Tensor mix, Tensor combined)");
  library.def(
      "route_backward(Tensor dy, Tensor[] rows, Tensor query, int num_heads, Tensor? norm_weight, "
      "Tensor? bias, Tensor? null_source, Tensor? partial, Tensor? gate, bool output_norm, "
      "Tensor? output_norm_weight, float scale, float eps, float output_norm_eps, int rounding, "
      "Tensor lse, Tensor mix, Tensor combined, bool[] wanted) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(mhar, CPU, library)
{
  library.impl("route", &route);
  library.impl("route_backward", &route_backward);
}
