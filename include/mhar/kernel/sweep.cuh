// SPDX-License-Identifier: Apache-2.0
//! The kernels of the sweeps' verbs that serve every type, shape and option.
#pragma once

#include <mhar/block/advance_any.cuh>
#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/fold_sites.cuh>
#include <mhar/block/gather_any.cuh>
#include <mhar/block/output_gradient_any.cuh>
#include <mhar/block/reduce_sites.cuh>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! A grid over positions.
template <class T, int Capacity, int Threads>
__global__ void __launch_bounds__(Threads)
    advance_any_kernel(const __grid_constant__ block::advance_any_params<T, Capacity> pass)
{
  using advance = block::advance_any<T, Capacity, Threads>;
  __shared__ typename advance::storage storage;
  block::detail::wait_for_dependencies();
  advance{pass, storage}.run();
}

//! One block per chunk of positions.
template <class T, int Capacity, int Threads>
__global__ void __launch_bounds__(Threads)
    gather_any_kernel(const __grid_constant__ block::gather_any_params<T, Capacity> pass)
{
  block::detail::wait_for_dependencies();
  block::gather_any<T, Capacity, Threads>{pass}.run();
}

//! One block per chunk of positions.
template <class T, int Threads>
__global__ void __launch_bounds__(Threads)
    output_gradient_any_kernel(const __grid_constant__ block::output_gradient_any_params<T> call)
{
  using output_gradient = block::output_gradient_any<T, Threads>;
  __shared__ typename output_gradient::storage storage;
  block::detail::wait_for_dependencies();
  output_gradient{call, storage}.run();
}

//! One block per call.
template <class T, int Batch, int Threads>
__global__ void __launch_bounds__(Threads)
    fold_sites_kernel(const __grid_constant__ block::fold_sites_params<T, Batch> sites)
{
  using fold = block::fold_sites<T, Batch, Threads>;
  __shared__ typename fold::storage storage;
  block::detail::wait_for_dependencies();
  fold{sites, storage}.run();
}

//! Does nothing. Launched without the programmatic attribute it starts when everything before it
//! has ended: passes may then read folded parameters before they wait for the kernel in front of
//! them.
template <class T>
__global__ void fence_kernel()
{
}

//! One block per 32 columns and site.
template <class T, int Batch>
__global__ void __launch_bounds__(block::reduce_sites<T, Batch>::num_threads)
    reduce_sites_kernel(const __grid_constant__ block::reduce_sites_params<T, Batch> sites)
{
  __shared__ typename block::reduce_sites<T, Batch>::storage storage;
  block::detail::wait_for_dependencies();
  block::reduce_sites<T, Batch>{sites, storage}.run();
}

}  // namespace kernel
MHAR_NAMESPACE_END
