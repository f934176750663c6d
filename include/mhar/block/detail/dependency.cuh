// SPDX-License-Identifier: Apache-2.0
//! Programmatic dependent launch as a kernel sees it; without that launch attribute both are no-ops.
#pragma once

#include <mhar/config.hpp>

#include <cuda_runtime_api.h>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Waits until the kernels this one depends on have ended and their writes can be seen: before the first access to memory that
//! they write or read.
__device__ __forceinline__ void wait_for_dependencies()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

//! Lets the next kernel in the stream be started; it still waits for this one to end. Behind wait_for_dependencies, it says besides
//! that all kernels in front of this one have ended: what they have written, no kernel behind needs to wait for.
__device__ __forceinline__ void release_dependents()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

}  // namespace block::detail
MHAR_NAMESPACE_END
