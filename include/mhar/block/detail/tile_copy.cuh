// SPDX-License-Identifier: Apache-2.0
//! One head's columns of a row between memory and shared memory, a warp at a time.
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

//! Rows in shared memory are 16 bytes longer than they must be, so that eight of them start in
//! different banks.
template <class Element, int HeadWidth>
inline constexpr int tile_row_bytes = HeadWidth* static_cast<int>(sizeof(Element)) + 16;

//! How a warp's lanes divide over rows of 16-byte vectors: a whole number of rows at a time.
template <class Element, int HeadWidth>
struct tile_lanes
{
  static constexpr int vectors = HeadWidth * static_cast<int>(sizeof(Element)) / 16;
  static constexpr int rows = vectors <= 32 ? 32 / vectors : 1;
  static constexpr int rounds = (vectors + 31) / 32;
  static constexpr int elements = 16 / static_cast<int>(sizeof(Element));

  int row;     //!< of the rows at a time; `rows` and more are idle
  int vector;  //!< the first of this lane's

  __device__ __forceinline__ explicit tile_lanes(int lane)
      : row{vectors <= 32 ? lane / vectors : 0}, vector{vectors <= 32 ? lane % vectors : lane}
  {
  }
  [[nodiscard]] __device__ __forceinline__ bool has(int round) const
  {
    return row < rows && (vectors % 32 == 0 || vectors < 32 || vector + round * 32 < vectors);
  }
};

//! Starts copies of rows first, first + step, ... below count: row n from from + n*stride.
template <class Element, int HeadWidth>
__device__ __forceinline__ void copy_tile(unsigned char* to, const Element* from,
                                          std::int64_t stride, int first, int count, int step,
                                          const tile_lanes<Element, HeadWidth>& lanes)
{
  using shape = tile_lanes<Element, HeadWidth>;
  const int start = first * shape::rows + lanes.row;
  const Element* source = from + start * stride + lanes.vector * shape::elements;
  unsigned char* target = to + start * tile_row_bytes<Element, HeadWidth> + lanes.vector * 16;
  for (int n = start; n < count; n += step * shape::rows) {
#pragma unroll
    for (int round = 0; round < shape::rounds; ++round) {
      if (lanes.has(round)) {
        copy_async(target + round * 512, source + round * 32 * shape::elements);
      }
    }
    source += stride * (step * shape::rows);
    target += step * shape::rows * tile_row_bytes<Element, HeadWidth>;
  }
}

//! Stores 16 bytes of a row.
template <class T>
__device__ __forceinline__ void store_16_bytes(T* to, uint4 vector)
{
  *reinterpret_cast<uint4*>(to) = vector;
}

}  // namespace block::detail
MHAR_NAMESPACE_END
