// SPDX-License-Identifier: Apache-2.0
//! One head's columns of rows in shared memory: how far apart rows lie, and small copies to and from them.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/element_pairs.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Starts *to = *from for four bytes, some time later.
__device__ __forceinline__ void copy_async_4(void* to, const void* from)
{
  const auto target = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(from) : "memory");
}

//! The same to an address of shared memory as instructions take it.
__device__ __forceinline__ void copy_async_4(std::uint32_t to, const void* from)
{
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

[[nodiscard]] __device__ __forceinline__ float load_shared_float(std::uint32_t from)
{
  float result;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(result) : "r"(from) : "memory");
  return result;
}

//! Rows in shared memory are 16 bytes longer than they must be, so that eight of them start in
//! different banks.
template <class Element, int HeadWidth>
inline constexpr int tile_row_bytes = HeadWidth* static_cast<int>(sizeof(Element)) + 16;

//! Stores 16 bytes of a row.
template <class T>
__device__ __forceinline__ void store_16_bytes(T* to, uint4 vector)
{
  *reinterpret_cast<uint4*>(to) = vector;
}

}  // namespace block::detail
MHAR_NAMESPACE_END
