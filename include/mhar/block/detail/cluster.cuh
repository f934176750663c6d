// SPDX-License-Identifier: Apache-2.0
//! Thread block clusters (compute capability 9.0): ranks, barriers and the shared memory of the other blocks. On older devices a
//! block is a cluster of its own.
#pragma once

#include <mhar/config.hpp>

#include <cuda_runtime_api.h>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

struct cluster
{
  [[nodiscard]] static __device__ __forceinline__ int rank()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return static_cast<int>(__clusterRelativeBlockRank());
#else
    return 0;
#endif
  }
  [[nodiscard]] static __device__ __forceinline__ int size()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return static_cast<int>(__clusterSizeInBlocks());
#else
    return 1;
#endif
  }
  //! What all threads wrote before they arrived, to any block's shared memory, can be read by those that waited.
  static __device__ __forceinline__ void arrive()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __cluster_barrier_arrive();
#endif
  }
  static __device__ __forceinline__ void wait()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __cluster_barrier_wait();
#else
    __syncthreads();
#endif
  }
  static __device__ __forceinline__ void sync()
  {
    arrive();
    wait();
  }
  //! The same place in the shared memory of another block.
  template <class Value>
  [[nodiscard]] static __device__ __forceinline__ Value* in_block(Value* place, int block)
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return static_cast<Value*>(__cluster_map_shared_rank(place, static_cast<unsigned>(block)));
#else
    static_cast<void>(block);
    return place;
#endif
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
