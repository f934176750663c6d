// SPDX-License-Identifier: Apache-2.0
//! The kernel of backward passes by warpgroups.
#pragma once

#include <mhar/block/gather_groups.cuh>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! One cluster of the heads per range of positions. Code for anything but 9.0a has nothing in it, and says so: it serves blocks of one warp.
template <class T, int HeadWidth, int Chunks, bool Segmented>
__global__ void __launch_bounds__(
    block::detail::has_warpgroups
        ? block::gather_groups<T, HeadWidth, Chunks, Segmented>::num_threads
        : 32,
    1) gather_groups_kernel(const __grid_constant__ block::gather_tensor_params<T> pass,
                            const __grid_constant__ block::detail::tensor_map calls)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char shared_lines[];
  block::gather_groups<T, HeadWidth, Chunks, Segmented>::run(pass, calls, shared_lines);
#endif
}

}  // namespace kernel
MHAR_NAMESPACE_END
