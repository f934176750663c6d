// SPDX-License-Identifier: Apache-2.0
//! The kernels of the sweeps' passes on tensor cores.
#pragma once

#include <mhar/block/advance_rows.cuh>
#include <mhar/block/advance_tiles.cuh>
#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/gather_calls.cuh>
#include <mhar/block/gather_tiles.cuh>
#include <mhar/tuning/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! One block per eight positions, `Blocks` at a time on a multiprocessor.
template <class T, int HeadWidth, int Rows, class State, int Blocks, bool Ends, bool HasNull>
__global__ void __launch_bounds__(256, tuning::sweep_policy::advance_rows_blocks(
                                           HeadWidth, Rows, static_cast<int>(sizeof(State))))
    advance_rows_kernel(const __grid_constant__ block::advance_tensor_params<T> pass)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using advance = block::advance_rows<T, HeadWidth, Rows, State, Blocks, Ends, HasNull>;
  extern __shared__ __align__(16) unsigned char shared[];
  advance work{pass, shared};
  work.prepare();
  block::detail::wait_for_dependencies();
  block::detail::release_dependents();
  work.run();
#endif
}

//! One block per range of positions and 8*Halves calls.
template <class T, int HeadWidth, int Halves, class State, bool Ends>
__global__ void __launch_bounds__(32 * tuning::sweep_policy::advance_warps(Halves), 1)
    advance_tiles_kernel(const __grid_constant__ block::advance_tensor_params<T> pass)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int slots = tuning::sweep_policy::advance_slots(HeadWidth, Halves);
  block::advance_tiles<T, HeadWidth, Halves, slots, State, Ends> work{pass, shared};
  work.prepare();
  block::detail::wait_for_dependencies();
  block::detail::release_dependents();
  work.run();
#endif
}

//! Blocks walk over tiles of eight positions.
template <class T, int HeadWidth, int Calls, class State, int MinBlocks, bool Ahead>
__global__ void __launch_bounds__(256, MinBlocks)
    gather_calls_kernel(const __grid_constant__ block::gather_tensor_params<T> pass)
{
  extern __shared__ __align__(16) float shared_floats[];
  block::gather_calls<T, HeadWidth, Calls, State, Ahead> work{pass, shared_floats};
  work.prepare();
  block::detail::wait_for_dependencies();
  block::detail::release_dependents();
  work.run();
}

//! One cluster of the heads per range of positions.
template <class T, int HeadWidth, int Chunks, int MemberTiles, class State, bool Segmented>
__global__ void __launch_bounds__(
    block::gather_tiles<T, HeadWidth, Chunks, MemberTiles, State, Segmented>::num_threads, 1)
    gather_tiles_kernel(const __grid_constant__ block::gather_tensor_params<T> pass)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using gather = block::gather_tiles<T, HeadWidth, Chunks, MemberTiles, State, Segmented>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int segments =
      Segmented ? (pass.num_calls + pass.calls_per_segment - 1) / pass.calls_per_segment : 1;
#  pragma unroll 1
  for (int segment = 0; segment < segments; ++segment) {
    gather work{pass, shared, segment};
    work.prepare();
    if (segment == 0) {
      block::detail::wait_for_dependencies();
      block::detail::release_dependents();
    }
    work.run();
    if (Segmented) { __syncthreads(); }
  }
#endif
}

}  // namespace kernel
MHAR_NAMESPACE_END
