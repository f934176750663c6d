// SPDX-License-Identifier: Apache-2.0
//! Thread block clusters (compute capability 9.0): ranks, barriers and the shared memory of the other blocks. On older devices a
//! block is a cluster of its own.
#pragma once

#include <mhar/config.hpp>

#include <cuda_runtime_api.h>
#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

struct cluster
{
  [[nodiscard]] static __device__ __forceinline__ int rank()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return static_cast<int>(__clusterRelativeBlockRank());
#else
    return 0;
#endif
  }
  [[nodiscard]] static __device__ __forceinline__ int size()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return static_cast<int>(__clusterSizeInBlocks());
#else
    return 1;
#endif
  }
  //! What all threads wrote before they arrived, to any block's shared memory, can be read by those that waited.
  static __device__ __forceinline__ void arrive()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __cluster_barrier_arrive();
#endif
  }
  //! Orders nothing but the start of the blocks.
  static __device__ __forceinline__ void arrive_without_order()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __cluster_barrier_arrive_relaxed();
#endif
  }
  static __device__ __forceinline__ void wait()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __cluster_barrier_wait();
#else
    __syncthreads();
#endif
  }
  static __device__ __forceinline__ void sync()
  {
    arrive();
    wait();
  }
  //! The same place in the shared memory of another block.
  template <class Value>
  [[nodiscard]] static __device__ __forceinline__ Value* in_block(Value* place, int block)
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return static_cast<Value*>(__cluster_map_shared_rank(place, static_cast<unsigned>(block)));
#else
    static_cast<void>(block);
    return place;
#endif
  }
};

//! A place of shared memory in another block, in the addresses of the cluster.
struct cluster_place
{
  std::uint32_t address;

  [[nodiscard]] static __device__ __forceinline__ cluster_place of(const void* place, int block)
  {
    cluster_place to{static_cast<std::uint32_t>(__cvta_generic_to_shared(place))};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(to.address) : "r"(block));
#else
    static_cast<void>(block);
#endif
    return to;
  }
  //! Writes `value`, and `box`, a mailbox of the same block, counts it.
  __device__ __forceinline__ void send(float value, const cluster_place& box) const
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
        "r"(__float_as_uint(value)), "r"(box.address)
        : "memory");
#else
    static_cast<void>(value), static_cast<void>(box);
#endif
  }
};

//! Values that the blocks of a cluster send each other, each a float, and who waits for them: as many as the one thread that
//! called `open` said, once. Lies in shared memory, in the same place of every block.
struct cluster_mailbox
{
  alignas(8) std::uint64_t barrier;

  //! By one thread, before a barrier of the cluster that comes before everybody's first send.
  __device__ __forceinline__ void open(int num_values)
  {
    init();
    expect(num_values);
  }
  //! The first half of `open`.
  __device__ __forceinline__ void init()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(&barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  //! The second, by the same thread.
  __device__ __forceinline__ void expect(int num_values)
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(&barrier)),
        "r"(num_values * 4)
        : "memory");
#else
    static_cast<void>(num_values);
#endif
  }
  //! Writes two values, whose place is aligned to 8 bytes, as `send` does one.
  __device__ __forceinline__ void send_pair(float* place, int block, float first, float second)
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .b32 to, box;\n"
        "mapa.shared::cluster.u32 to, %0, %2;\n"
        "mapa.shared::cluster.u32 box, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [to], {%3, %4}, [box];\n"
        "}" ::"r"(address_of(place)),
        "r"(address_of(&barrier)), "r"(block), "r"(__float_as_uint(first)),
        "r"(__float_as_uint(second))
        : "memory");
#else
    static_cast<void>(block);
    place[0] = first;
    place[1] = second;
#endif
  }
  //! Writes `value` to the same place of block `block`. In C++: *cluster::in_block(place, block) = value.
  __device__ __forceinline__ void send(float* place, int block, float value)
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .b32 to, box;\n"
        "mapa.shared::cluster.u32 to, %0, %2;\n"
        "mapa.shared::cluster.u32 box, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [box];\n"
        "}" ::"r"(address_of(place)),
        "r"(address_of(&barrier)), "r"(block), "r"(__float_as_uint(value))
        : "memory");
#else
    static_cast<void>(block);
    *place = value;
#endif
  }
  //! Until all values have come.
  __device__ __forceinline__ void wait()
  {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN%=:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra AGAIN%=;\n"
        "}" ::"r"(address_of(&barrier))
        : "memory");
    __syncwarp();
#endif
  }

private:
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t address_of(const void* place)
  {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
