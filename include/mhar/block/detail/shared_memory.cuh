// SPDX-License-Identifier: Apache-2.0
//! Shared memory by its 32-bit address: warps that wait for each other's every step have no time to
//! make one from a pointer.
#pragma once

#include <mhar/block/detail/tensor_core.cuh>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! In C++: *reinterpret_cast<const float*>(address).
[[nodiscard]] __device__ __forceinline__ float load_float(std::uint32_t address)
{
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
//! In C++: *reinterpret_cast<float*>(address) = value.
__device__ __forceinline__ void store_float(std::uint32_t address, float value)
{
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
//! Eight bytes, and sixteen.
[[nodiscard]] __device__ __forceinline__ uint2 load_8_bytes(std::uint32_t address)
{
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
  return value;
}
[[nodiscard]] __device__ __forceinline__ uint4 load_16_bytes(std::uint32_t address)
{
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

//! In C++: *reinterpret_cast<uint4*>(address) = value.
__device__ __forceinline__ void store_16_bytes(std::uint32_t address, uint4 value)
{
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

//! Two 8 x 8 matrices, as load_matrices and load_transposed of tensor_core.cuh load four: lanes 0 to 15
//! give the addresses.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[2], std::uint32_t address)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&to)[2], std::uint32_t address)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(address)
               : "memory");
}

//! The way back (compute capability 9.0): a lane gives columns 2q, 2q+1 of row i of each matrix.
__device__ __forceinline__ void store_matrices(std::uint32_t address,
                                               const std::uint32_t (&from)[4])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
#endif
}
__device__ __forceinline__ void store_matrices(std::uint32_t address,
                                               const std::uint32_t (&from)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};" ::"r"(address),
               "r"(from[0]), "r"(from[1])
               : "memory");
#endif
}
//! A lane gives rows 2q, 2q+1 of column i.
__device__ __forceinline__ void store_matrices_transposed(std::uint32_t address,
                                                          const std::uint32_t (&from)[4])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
#endif
}
__device__ __forceinline__ void store_matrices_transposed(std::uint32_t address,
                                                          const std::uint32_t (&from)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(address),
               "r"(from[0]), "r"(from[1])
               : "memory");
#endif
}

//! A value that the compiler keeps in a register instead of making it again where it is used.
[[nodiscard]] __device__ __forceinline__ std::uint32_t kept_value(std::uint32_t value)
{
  std::uint32_t result;
  asm volatile("mov.b32 %0, %1;" : "=r"(result) : "r"(value));
  return result;
}
[[nodiscard]] __device__ __forceinline__ int kept_value(int value)
{
  return static_cast<int>(kept_value(static_cast<std::uint32_t>(value)));
}

}  // namespace block::detail
MHAR_NAMESPACE_END
