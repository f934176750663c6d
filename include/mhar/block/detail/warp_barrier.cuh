// SPDX-License-Identifier: Apache-2.0
//! Barriers in shared memory by which warps of different roles hand each other places in turn.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! In C++: std::barrier whose phases alternate between 0 and 1. Compute capability 9.0.
struct warp_barrier
{
  std::uint32_t address;  //!< 8-byte aligned

  //! By one thread; the others see it after a barrier of the block.
  __device__ __forceinline__ void init(int count) const
  {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address), "r"(count) : "memory");
  }
  //! Ends its use, so that its place can become another barrier's. By one thread, all others being done with it.
  __device__ __forceinline__ void end() const
  {
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(address) : "memory");
  }
  __device__ __forceinline__ void arrive() const
  {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address) : "memory");
  }
  //! Arrives, and has the phase wait for so many bytes besides.
  __device__ __forceinline__ void arrive_and_expect(int bytes) const
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
                 : "memory");
#else
    static_cast<void>(bytes);
#endif
  }
  //! Arrives when all copies that this thread has started (cp.async) have ended.
  __device__ __forceinline__ void arrive_after_copies() const
  {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address) : "memory");
  }
  //! Waits for the end of a phase: what was done before its arrivals can be seen then.
  __device__ __forceinline__ void wait(int phase) const
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE%=;\n"
        "bra WAIT%=;\n"
        "DONE%=:\n"
        "}" ::"r"(address),
        "r"(phase)
        : "memory");
#else
    static_cast<void>(phase);
#endif
  }
};

//! A place in a ring: its index, and how often the ring has been gone round, as a phase.
struct ring_place
{
  int index = 0;
  int phase = 0;

  __device__ __forceinline__ void advance(int size)
  {
    ++index;
    phase ^= index == size ? 1 : 0;
    index = index == size ? 0 : index;
  }
  __device__ __forceinline__ void advance_by(int steps, int size)
  {
    index += steps;
#pragma unroll 1
    while (index >= size) {
      index -= size;
      phase ^= 1;
    }
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
