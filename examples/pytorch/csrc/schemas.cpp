// SPDX-License-Identifier: Apache-2.0
//! The operators as torch's dispatcher knows them, and those that are the same on every device.
#include "router.hpp"

#include <torch/library.h>

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

  library.def(
      "router_begin(SymInt[] sizes, ScalarType dtype, int arrangement, int calls_per_block, "
      "int num_heads, Tensor query, Tensor? norm_weight, Tensor? bias, Tensor? null_source, "
      "Tensor? gate, bool output_norm, Tensor? output_norm_weight, float scale, float eps, "
      "float output_norm_eps, ScalarType states, bool training, bool reuse_rows) "
      "-> (Tensor state, Tensor token)");
  library.def(
      "router_begin_backward(Tensor state, Tensor token, Tensor query, Tensor? norm_weight, "
      "Tensor? bias, Tensor? null_source, Tensor? gate, Tensor? output_norm_weight, bool[] wanted) "
      "-> Tensor[]");
  library.def(
      "router_read(Tensor state, Tensor token, int call, SymInt[] sizes, bool with_mix, "
      "bool with_combined, Tensor? private_row, Tensor? partial) "
      "-> (Tensor y, Tensor mix, Tensor combined, Tensor token)");
  library.def(
      "router_read_backward(Tensor state, Tensor token, int call, Tensor dy, Tensor mix, "
      "Tensor? combined, Tensor? private_row, bool wants_private, bool wants_partial) "
      "-> (Tensor private_gradient, Tensor partial_gradient, Tensor token)");
  library.def("router_write(Tensor state, Tensor token, int row, Tensor value) -> Tensor");
  library.def(
      "router_write_linear(Tensor state, Tensor token, int row, Tensor x, Tensor weight) -> "
      "Tensor");
  library.def(
      "router_write_backward(Tensor state, Tensor token, int row, SymInt[] sizes, bool wanted) "
      "-> (Tensor gradient, Tensor token)");
  library.def("router_row(Tensor state, int row) -> Tensor");
  library.def("router_gradient_place(Tensor state, int call) -> (Tensor place, Tensor in_place)");
}

// The pass itself knows its device.
TORCH_LIBRARY_IMPL(mhar, CompositeExplicitAutograd, library)
{
  library.impl("router_begin_backward", &mhar_torch::router_begin_backward);
  library.impl("router_read", &mhar_torch::router_read);
  library.impl("router_read_backward", &mhar_torch::router_read_backward);
  library.impl("router_write", &mhar_torch::router_write);
  library.impl("router_write_linear", &mhar_torch::router_write_linear);
  library.impl("router_write_backward", &mhar_torch::router_write_backward);
  library.impl("router_row", &mhar_torch::router_row);
  library.impl("router_gradient_place", &mhar_torch::router_gradient_place);
}
