// SPDX-License-Identifier: Apache-2.0
//! One head's columns of rows in shared memory: how far apart rows lie, and stores of their vectors.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/element_pairs.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

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
