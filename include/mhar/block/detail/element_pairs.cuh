// SPDX-License-Identifier: Apache-2.0
//! Elements of 16 bits two by two in a register and eight by eight in a 16-byte vector; the state of
//! a sweep in either of its types.
#pragma once

#include <mhar/thread/inverse_rms.hpp>
#include <mhar/types/element.hpp>

#include <cuda/std/type_traits>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Pairs of T, which is bfloat16 or float16.
template <class T>
[[nodiscard]] __device__ __forceinline__ float first_of(std::uint32_t pair)
{
  if constexpr (cuda::std::is_same_v<T, bfloat16>) { return __uint_as_float(pair << 16); }
  else {
    return __low2float(mhar::detail::bit_cast<__half2>(pair));
  }
}
template <class T>
[[nodiscard]] __device__ __forceinline__ float second_of(std::uint32_t pair)
{
  if constexpr (cuda::std::is_same_v<T, bfloat16>) { return __uint_as_float(pair & 0xffff0000u); }
  else {
    return __high2float(mhar::detail::bit_cast<__half2>(pair));
  }
}
template <class T>
[[nodiscard]] __device__ __forceinline__ std::uint32_t make_pair(float first, float second)
{
  std::uint32_t pair;
  if constexpr (cuda::std::is_same_v<T, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}
//! What rounding to `high` has left over.
template <class T>
[[nodiscard]] __device__ __forceinline__ std::uint32_t make_low_pair(std::uint32_t high,
                                                                     float first, float second)
{
  return make_pair<T>(first - first_of<T>(high), second - second_of<T>(high));
}

//! Register e of a vector.
[[nodiscard]] __device__ __forceinline__ std::uint32_t pair_of(const uint4& vector, int e)
{
  return e == 0 ? vector.x : e == 1 ? vector.y : e == 2 ? vector.z : vector.w;
}

[[nodiscard]] __device__ __forceinline__ uint4 load_vector(const void* from)
{
  return *static_cast<const uint4*>(from);
}

//! Sixteen bytes of parameters. Stays in front of a wait for other kernels, where a plain load may
//! be moved behind it.
[[nodiscard]] __device__ __forceinline__ uint4 load_parameters(const void* from)
{
  uint4 result;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(result.x), "=r"(result.y), "=r"(result.z), "=r"(result.w)
               : "l"(from)
               : "memory");
  return result;
}

//! The same of memory that kernels in front have written that ended before this one began, while
//! others may still run: from the L2 cache, where they left it.
[[nodiscard]] __device__ __forceinline__ uint4 load_early(const void* from)
{
  uint4 result;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(result.x), "=r"(result.y), "=r"(result.z), "=r"(result.w)
               : "l"(from)
               : "memory");
  return result;
}
[[nodiscard]] __device__ __forceinline__ float load_early_float(const float* from)
{
  float result;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(result) : "l"(from) : "memory");
  return result;
}

//! Sixteen bytes of shared memory.
[[nodiscard]] __device__ __forceinline__ uint4 load_shared(std::uint32_t address)
{
  return *static_cast<const uint4*>(__cvta_shared_to_generic(address));
}

//! The inverse rms from a row's sum of squares; `scaled` is the sum under overflow_scale, for rows
//! whose squares overflow. The reciprocal root of the special function unit is within two units in
//! the last place.
[[nodiscard]] __device__ __forceinline__ float row_inverse_rms(float sum, float scaled,
                                                               float inverse_width, float eps)
{
  return thread::overflowed(sum) ? thread::overflow_scale<float> * rsqrtf(scaled * inverse_width)
                                 : rsqrtf(fmaf(sum, inverse_width, eps));
}

//! sum += squares of eight elements.
template <class T>
__device__ __forceinline__ float add_squares(const uint4& vector, float scale, float sum)
{
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float first = scale * first_of<T>(pair_of(vector, e));
    const float second = scale * second_of<T>(pair_of(vector, e));
    sum = fmaf(first, first, sum);
    sum = fmaf(second, second, sum);
  }
  return sum;
}

//! Squares of all elements, those of each vector first.
template <class T, int Vectors>
[[nodiscard]] __device__ __forceinline__ float sum_squares(
    const uint4 (&vectors)[static_cast<std::size_t>(Vectors)], float scale)
{
  float sum = 0;
#pragma unroll
  for (int u = 0; u < Vectors; ++u) { sum += add_squares<T>(vectors[u], scale, 0.0f); }
  return sum;
}

//! sum += <a, b> over eight elements.
template <class T>
__device__ __forceinline__ float add_products(const uint4& a, const uint4& b, float sum)
{
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    sum = fmaf(first_of<T>(pair_of(a, e)), first_of<T>(pair_of(b, e)), sum);
    sum = fmaf(second_of<T>(pair_of(a, e)), second_of<T>(pair_of(b, e)), sum);
  }
  return sum;
}

//! Eight columns of `Vectors` groups that are 32 columns apart: what a lane holds of a kept state.
template <class State, int Vectors>
struct state_vectors
{
  uint4 values[static_cast<std::size_t>(Vectors)];

  __device__ __forceinline__ void load(const State* from)
  {
#pragma unroll
    for (int u = 0; u < Vectors; ++u) { values[u] = load_vector(from + u * 32); }
  }
  //! Vector u alone; before the wait for kernels in front, as load_early says.
  template <bool Early>
  __device__ __forceinline__ void load_one(int u, const State* from)
  {
    values[u] = Early ? load_early(from) : load_vector(from);
  }
  [[nodiscard]] __device__ __forceinline__ float2 get(int u, int e) const
  {
    const std::uint32_t pair = pair_of(values[u], e);
    return make_float2(first_of<State>(pair), second_of<State>(pair));
  }
};

template <int Vectors>
struct state_vectors<float, Vectors>
{
  float4 values[static_cast<std::size_t>(2 * Vectors)];

  __device__ __forceinline__ void load(const float* from)
  {
#pragma unroll
    for (int u = 0; u < Vectors; ++u) {
      values[2 * u] = *reinterpret_cast<const float4*>(from + u * 32);
      values[2 * u + 1] = *reinterpret_cast<const float4*>(from + u * 32 + 4);
    }
  }
  template <bool Early>
  __device__ __forceinline__ void load_one(int u, const float* from)
  {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      values[2 * u + half] = mhar::detail::bit_cast<float4>(Early ? load_early(from + half * 4)
                                                                  : load_vector(from + half * 4));
    }
  }
  [[nodiscard]] __device__ __forceinline__ float2 get(int u, int e) const
  {
    const float4 half = values[2 * u + e / 2];
    return e % 2 == 0 ? make_float2(half.x, half.y) : make_float2(half.z, half.w);
  }
};

//! Stores eight columns, rounded to the destination's type.
template <class T>
__device__ __forceinline__ void store_vector(T* to, const float (&values)[8])
{
  *reinterpret_cast<uint4*>(to) =
      make_uint4(make_pair<T>(values[0], values[1]), make_pair<T>(values[2], values[3]),
                 make_pair<T>(values[4], values[5]), make_pair<T>(values[6], values[7]));
}
__device__ __forceinline__ void store_vector(float* to, const float (&values)[8])
{
  *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
  *reinterpret_cast<float4*>(to + 4) = make_float4(values[4], values[5], values[6], values[7]);
}

//! The same to memory that is not shared: one store of 16 bytes, or two, whatever the address looks like.
__device__ __forceinline__ void store_16_bytes(void* to, std::uint32_t x, std::uint32_t y,
                                               std::uint32_t z, std::uint32_t w)
{
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
template <class T>
__device__ __forceinline__ void store_to_memory(T* to, const float (&values)[8])
{
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_16_bytes(to + half * 4, __float_as_uint(values[half * 4]),
                     __float_as_uint(values[half * 4 + 1]), __float_as_uint(values[half * 4 + 2]),
                     __float_as_uint(values[half * 4 + 3]));
    }
  }
  else {
    store_16_bytes(to, make_pair<T>(values[0], values[1]), make_pair<T>(values[2], values[3]),
                   make_pair<T>(values[4], values[5]), make_pair<T>(values[6], values[7]));
  }
}

//! 2^x by the special function unit; its error of 2 units in the last place is far below the
//! rounding of the weights that it makes.
[[nodiscard]] __device__ __forceinline__ float exp2_approximate(float x)
{
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

inline constexpr float log2_of_e = 1.4426950408889634f;
inline constexpr float log_of_2 = 0.6931471805599453f;

}  // namespace block::detail
MHAR_NAMESPACE_END
