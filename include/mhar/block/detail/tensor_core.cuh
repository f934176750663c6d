// SPDX-License-Identifier: Apache-2.0
//! Products of small matrices of bfloat16 or float16 held by a warp, and how they get from shared memory into its
//! registers.
//!
//! Lane 4*i + q. Of m16n8k16 it holds, of the first operand, rows i (a0, a2) and i + 8 (a1, a3),
//! columns 2q, 2q+1 (a0, a1) and 2q+8, 2q+9 (a2, a3); of the second, rows 2q, 2q+1 (b0) and 2q+8,
//! 2q+9 (b1) of column i; of the sum, columns 2q, 2q+1 of rows i (0, 1) and i + 8 (2, 3).
#pragma once

#include <mhar/types/element.hpp>

#include <cuda/std/type_traits>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! sum += A * B with A 16 x 16, B 16 x 8, both of T.
template <class T>
__device__ __forceinline__ void multiply_add_16(float (&sum)[4], std::uint32_t a0, std::uint32_t a1,
                                                std::uint32_t a2, std::uint32_t a3,
                                                std::uint32_t b0, std::uint32_t b1)
{
  if constexpr (cuda::std::is_same_v<T, bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
template <class T>
__device__ __forceinline__ void multiply_add_16(float (&sum)[4], const std::uint32_t (&a)[4],
                                                std::uint32_t b0, std::uint32_t b1)
{
  multiply_add_16<T>(sum, a[0], a[1], a[2], a[3], b0, b1);
}

//! sum += A * B with A 16 x 8, B 8 x 8, both of T.
template <class T>
__device__ __forceinline__ void multiply_add_8(float (&sum)[4], std::uint32_t a0, std::uint32_t a1,
                                               std::uint32_t b0)
{
  if constexpr (cuda::std::is_same_v<T, bfloat16>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(b0));
  }
  else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(b0));
  }
}

//! Four 8 x 8 matrices: lane 8j + r gives the address of row r of matrix j, and receives columns
//! 2q, 2q+1 of row i of each.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t address)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

//! The same with each matrix transposed: a lane receives rows 2q, 2q+1 of column i.
__device__ __forceinline__ void load_transposed(std::uint32_t (&to)[4], std::uint32_t address)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

//! Four 8 x 8 matrices to shared memory: the reverse of load_transposed. Compute capability 9.0.
__device__ __forceinline__ void store_transposed(std::uint32_t address,
                                                 const std::uint32_t (&from)[4])
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
#endif
}

//! An 8 x 8 matrix of which a lane holds columns 2q, 2q+1 of row i, transposed.
[[nodiscard]] __device__ __forceinline__ std::uint32_t transpose(std::uint32_t pair)
{
  std::uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

//! The address of shared memory as the instructions above take it.
[[nodiscard]] __device__ __forceinline__ std::uint32_t shared_address(const void* pointer)
{
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

//! Over the four lanes that share a row of a product.
[[nodiscard]] __device__ __forceinline__ float quad_sum(float value)
{
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
[[nodiscard]] __device__ __forceinline__ float quad_max(float value)
{
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

}  // namespace block::detail
MHAR_NAMESPACE_END
