// SPDX-License-Identifier: Apache-2.0
//! The kernels of a routing call's backward.
#pragma once

#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/parameter_sums.cuh>
#include <mhar/block/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! A persistent grid: block b takes an equal share of the chunks of positions.
template <class T, int Chunks, int Capacity, int Threads>
__global__ void __launch_bounds__(Threads, 1)
    route_gradient_kernel(const __grid_constant__ block::route_gradient_params<T, Capacity> call)
{
  extern __shared__ __align__(16) unsigned char shared[];
  block::detail::wait_for_dependencies();
  const std::int64_t chunks = call.partials.num_chunks;
  const auto first = static_cast<int>(chunks * blockIdx.x / gridDim.x);
  const auto last = static_cast<int>(chunks * (blockIdx.x + 1) / gridDim.x);
  block::route_gradient<T, Chunks, Capacity>{call, shared}.run(first, last);
}

//! One block per 32 columns of one gradient.
template <class Accumulate>
__global__ void __launch_bounds__(block::parameter_sums<Accumulate>::num_threads)
    parameter_sums_kernel(const __grid_constant__ block::parameter_sums_params<Accumulate> sums)
{
  block::detail::wait_for_dependencies();
  __shared__ typename block::parameter_sums<Accumulate>::storage storage;
  block::parameter_sums<Accumulate>{sums, storage}.run(static_cast<int>(blockIdx.y),
                                                       std::int64_t{blockIdx.x});
}

}  // namespace kernel
MHAR_NAMESPACE_END
