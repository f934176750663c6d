// SPDX-License-Identifier: Apache-2.0
//! Copies of whole rows to shared memory by the copy engine (compute capability 9.0): the only place that writes them in PTX.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A barrier in shared memory that opens when the bytes it expects have arrived; it then counts the next phase. In C++:
//! std::barrier with a count of one thread and one byte counter.
struct copy_barrier
{
  std::uint64_t* place;

  [[nodiscard]] __device__ __forceinline__ std::uint32_t address() const
  {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
  }
  //! By one thread; the others see it after a barrier of the block.
  __device__ __forceinline__ void init() const
  {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address()) : "memory");
  }
  //! By the thread that copies, before it starts the copies of a phase.
  __device__ __forceinline__ void expect(int bytes) const
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
#else
    static_cast<void>(bytes);
#endif
  }
  //! Waits for the end of a phase, 0 or 1 in turn.
  __device__ __forceinline__ void wait(int phase) const
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    std::uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.b32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(address()), "r"(phase)
          : "memory");
    }
#else
    static_cast<void>(phase);
#endif
  }
};

//! Starts a copy of `bytes`, a multiple of 16, between 16-byte aligned places; `done` counts its bytes. In C++: memcpy, some time
//! later.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes,
                                          const copy_barrier& done)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(bytes), "r"(done.address())
      : "memory");
#else
  static_cast<void>(to), static_cast<void>(from), static_cast<void>(bytes), static_cast<void>(done);
#endif
}

//! Makes what this thread did to shared memory, or has waited for, precede what the copy engine and the products of warpgroups do
//! there later. Reads, too: they wait in a queue, behind loads from memory that lack a place in the cache, and the engine does not.
__device__ __forceinline__ void fence_async_proxy()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

//! The same for barriers that this thread has readied.
__device__ __forceinline__ void fence_bulk_copies()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  fence_async_proxy();
}

}  // namespace block::detail
MHAR_NAMESPACE_END
