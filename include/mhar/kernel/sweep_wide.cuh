// SPDX-License-Identifier: Apache-2.0
//! The kernels of the sweeps' passes over wide heads, of passes that read nothing, and of the
//! gradients of outputs.
#pragma once

#include <mhar/block/advance_wide.cuh>
#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/end_call.cuh>
#include <mhar/block/finish_rows.cuh>
#include <mhar/block/gather_wide.cuh>
#include <mhar/block/output_gradient_columns.cuh>
#include <mhar/block/output_gradient_heads.cuh>
#include <mhar/block/output_gradient_normed.cuh>
#include <mhar/block/output_gradient_wide.cuh>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! Block x is a head or, Split, a cluster's share of one; blocks along y share the positions.
template <class T, int Width, int Chunks, class State, bool Split>
__global__ void __launch_bounds__(
    (block::advance_wide<T, Width, Chunks, State, Split>::max_threads),
    (block::advance_wide<T, Width, Chunks, State, Split>::blocks_per_multiprocessor))
    advance_wide_kernel(const __grid_constant__ block::advance_wide_params<T> pass)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  block::detail::release_dependents();
  block::advance_wide<T, Width, Chunks, State, Split> work{pass, shared};
  block::detail::wait_for_dependencies();
  work.run();
#endif
}

//! One cluster of the heads per range of positions.
template <class T, int Width, class State, bool Split>
__global__ void __launch_bounds__((block::gather_wide<T, Width, State, Split>::max_threads), 1)
    gather_wide_kernel(const __grid_constant__ block::gather_wide_params<T> pass)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  block::detail::release_dependents();
  block::gather_wide<T, Width, State, Split> work{pass, shared};
  block::detail::wait_for_dependencies();
  work.run();
#endif
}

//! A block per range of positions.
template <class T, int Width, bool Split>
__global__ void __launch_bounds__(512, 1)
    output_gradient_wide_kernel(const __grid_constant__ output_gradient_problem<T> call)
{
  using gradient = block::output_gradient_wide<T, Width, Split>;
  __shared__ typename gradient::storage storage;
  block::detail::release_dependents();
  gradient work{call, storage};
  block::detail::wait_for_dependencies();
  work.run();
}

//! A block per range of positions.
template <class T, int HeadWidth>
__global__ void __launch_bounds__(
    (block::output_gradient_heads<T, HeadWidth>::num_threads),
    (block::output_gradient_heads<T, HeadWidth>::blocks_per_multiprocessor))
    output_gradient_heads_kernel(const __grid_constant__ output_gradient_problem<T> call)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  block::detail::release_dependents();
  block::output_gradient_heads<T, HeadWidth> work{call, shared};
  work.prepare();
  block::detail::wait_for_dependencies();
  work.run();
#endif
}

//! A block per range of positions.
template <class T, int Vectors, int Warps>
__global__ void __launch_bounds__(256) output_gradient_columns_kernel(
    const __grid_constant__ block::output_gradient_columns_params<T> call)
{
  extern __shared__ __align__(16) float shared_floats[];
  block::detail::release_dependents();
  block::output_gradient_columns<T, Vectors, Warps> work{call, shared_floats};
  block::detail::wait_for_dependencies();
  work.run();
}

//! A block per range of positions.
template <class T, int HeadWidth>
__global__ void __launch_bounds__(
    (block::output_gradient_normed<T, HeadWidth>::num_threads),
    (block::output_gradient_normed<T, HeadWidth>::blocks_per_multiprocessor))
    output_gradient_normed_kernel(
        const __grid_constant__ block::output_gradient_columns_params<T> call)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  block::detail::release_dependents();
  block::output_gradient_normed<T, HeadWidth> work{call, shared};
  block::detail::wait_for_dependencies();
  work.run();
#endif
}

//! A warp or a block per position.
template <class T, int Vectors, int Warps, class State>
__global__ void __launch_bounds__(256)
    end_call_kernel(const __grid_constant__ block::end_call_params<T> call)
{
  extern __shared__ __align__(16) float shared_floats[];
  block::detail::release_dependents();
  block::end_call<T, Vectors, Warps, State> work{call, shared_floats};
  block::detail::wait_for_dependencies();
  work.run();
}

//! A block per position.
template <class T, class State>
__global__ void __launch_bounds__(256)
    finish_call_kernel(const __grid_constant__ block::finish_call_params<T> call)
{
  block::detail::release_dependents();
  block::detail::wait_for_dependencies();
  block::finish_call<T, State>(call);
}

//! A block per position.
template <class T, class State>
__global__ void __launch_bounds__(256)
    finish_row_kernel(const __grid_constant__ block::finish_row_params<T> row)
{
  block::detail::release_dependents();
  block::detail::wait_for_dependencies();
  block::finish_row<T, State>(row);
}

//! A warp per position, rows along y.
template <class T>
__global__ void __launch_bounds__(256)
    row_statistics_kernel(const __grid_constant__ block::row_statistics_params<T> pass)
{
  block::detail::wait_for_dependencies();
  block::detail::release_dependents();  // not before: a later pass may read these rows early
  block::find_row_statistics(pass);
}

}  // namespace kernel
MHAR_NAMESPACE_END
