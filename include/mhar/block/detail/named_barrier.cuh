// SPDX-License-Identifier: Apache-2.0
//! Barriers among some of a block's threads, with an arrival that does not wait: the only place that writes them in PTX.
#pragma once

#include <mhar/config.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Barrier Id (1 to 15) among `threads` threads, whole warps. In C++: std::barrier with arrive_and_wait and arrive. What a
//! thread wrote before it arrived can be read by those that waited. A number known at compile time keeps a kernel from claiming
//! all sixteen.
//!
//! A warp's lanes meet first: a barrier counts warps, and a lane that is still writing must not be counted.
template <int Id>
struct named_barrier
{
  int threads;

  __device__ __forceinline__ void sync() const
  {
    __syncwarp();
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(Id), "r"(threads) : "memory");
  }
  __device__ __forceinline__ void arrive() const
  {
    __syncwarp();
    asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"n"(Id), "r"(threads) : "memory");
  }
};

//! The same with a number known at run time.
struct numbered_barrier
{
  int id;
  int threads;

  __device__ __forceinline__ void sync() const
  {
    __syncwarp();
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
  }
};

//! Two of them, for even and odd batches.
template <int Even, int Odd>
struct named_barriers
{
  int threads;

  __device__ __forceinline__ void sync(int parity) const
  {
    if (parity == 0) { named_barrier<Even>{threads}.sync(); }
    else {
      named_barrier<Odd>{threads}.sync();
    }
  }
  __device__ __forceinline__ void arrive(int parity) const
  {
    if (parity == 0) { named_barrier<Even>{threads}.arrive(); }
    else {
      named_barrier<Odd>{threads}.arrive();
    }
  }
};

//! All threads of the block.
struct block_barrier
{
  __device__ __forceinline__ void sync() const { __syncthreads(); }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
