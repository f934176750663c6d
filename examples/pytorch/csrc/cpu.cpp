// SPDX-License-Identifier: Apache-2.0
//! The operators on CPU tensors.
#include "on_cpu.hpp"
#include "route.hpp"
#include "router.hpp"

#include <torch/library.h>

using mhar_torch::on_cpu;

TORCH_LIBRARY_IMPL(mhar, CPU, library)
{
  library.impl("route", &mhar_torch::route<on_cpu>);
  library.impl("route_backward", &mhar_torch::route_backward<on_cpu>);
  library.impl("router_begin", &mhar_torch::router_begin<on_cpu>);
}
