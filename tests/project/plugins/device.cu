// SPDX-License-Identifier: Apache-2.0
//! A plugin with CUDA code: without a problem it answers before the first CUDA call, so it runs without a GPU.
#include <mhar/device/route.cuh>

extern "C" __attribute__((visibility("default"))) int MHAR_PLUGIN();

extern "C" int MHAR_PLUGIN()
{
  const mhar::device::context context{cudaStream_t{nullptr}};
  const mhar::route_problem<float> nothing;
  return static_cast<int>(mhar::device::route(nothing, context).code);
}
