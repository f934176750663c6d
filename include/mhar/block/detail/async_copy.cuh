// SPDX-License-Identifier: Apache-2.0
//! Copies from memory to shared memory that run while the thread goes on (cp.async): the only place that writes them in PTX.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Starts *to = *from for 16 bytes; both are 16-byte aligned. In C++: memcpy(to, from, 16), some time later.
__device__ __forceinline__ void copy_async(void* to, const void* from)
{
  const auto target = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
}

//! The same to an address of shared memory as instructions take it.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

//! The same; zeros where there is nothing to copy. `from` may be read in any case.
__device__ __forceinline__ void copy_async_or_zero(std::uint32_t to, const void* from, bool exists)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}

//! The same for four bytes.
__device__ __forceinline__ void copy_async_4(std::uint32_t to, const void* from)
{
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_4(void* to, const void* from)
{
  copy_async_4(static_cast<std::uint32_t>(__cvta_generic_to_shared(to)), from);
}

//! Ends a group: the copies that this thread started since the last group. A group may be empty.
__device__ __forceinline__ void end_copy_group()
{
  asm volatile("cp.async.commit_group;" ::: "memory");
}

//! Waits until at most `Pending` of this thread's groups are unfinished. What they copied can then be read by this thread, and
//! after a barrier by the others.
template <int Pending>
__device__ __forceinline__ void wait_for_copy_groups()
{
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

//! The same with a number known at run time, below 8; larger ones wait for more than they must.
__device__ __forceinline__ void wait_for_copy_groups(int pending)
{
  switch (pending) {
    case 0: wait_for_copy_groups<0>(); break;
    case 1: wait_for_copy_groups<1>(); break;
    case 2: wait_for_copy_groups<2>(); break;
    case 3: wait_for_copy_groups<3>(); break;
    case 4: wait_for_copy_groups<4>(); break;
    case 5: wait_for_copy_groups<5>(); break;
    case 6: wait_for_copy_groups<6>(); break;
    default: wait_for_copy_groups<7>(); break;
  }
}

//! Asks for a line of memory to be brought into the L2 cache.
__device__ __forceinline__ void prefetch_to_l2(const void* address)
{
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

//! The same for a run of bytes; address and length are multiples of 16. Compute capability 9.0.
__device__ __forceinline__ void prefetch_to_l2(const void* address, int bytes)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes));
#endif
}

}  // namespace block::detail
MHAR_NAMESPACE_END
