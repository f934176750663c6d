// SPDX-License-Identifier: Apache-2.0
//! Copies of boxes by tensor maps: the only place that writes them in PTX. Compute capability 9.0.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! What the driver has encoded: a tensor's place and extents, and a box of it. A kernel's parameter, read where it lies.
struct alignas(64) tensor_map
{
  std::uint64_t words[16];
};

//! Starts a copy of the box at these four coordinates; a barrier counts its bytes. Elements outside of the tensor become zero.
__device__ __forceinline__ void copy_box(std::uint32_t to, const tensor_map& map, int x, int y,
                                         int z, int w, std::uint32_t barrier)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
#endif
}

}  // namespace block::detail
MHAR_NAMESPACE_END
