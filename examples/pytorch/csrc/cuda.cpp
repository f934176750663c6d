// SPDX-License-Identifier: Apache-2.0
//! The operators on CUDA tensors.
#include "on_gpu.hpp"
#include "route.hpp"
#include "router.hpp"

#include <torch/library.h>

using mhar_torch::on_gpu;

TORCH_LIBRARY_IMPL(mhar, CUDA, library)
{
  library.impl("route", &mhar_torch::route<on_gpu>);
  library.impl("route_backward", &mhar_torch::route_backward<on_gpu>);
  library.impl("router_begin", &mhar_torch::router_begin<on_gpu>);
}
