// SPDX-License-Identifier: Apache-2.0
//! Numbers that the blocks of a cluster send into each other's shared memory, and the barrier that
//! says when they have come. Compute capability 9.0. A block that is alone is launched without a
//! cluster, where remote stores are illegal: it stores plainly, and the warp that waits for the
//! numbers is the warp that stored them.
#pragma once

#include <mhar/config.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! The first half of a barrier over the cluster; orders nothing but the start of its blocks.
__device__ __forceinline__ void arrive_at_cluster()
{
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
//! The second half.
__device__ __forceinline__ void wait_for_cluster()
{
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

//! A barrier in shared memory that `arrivals` threads arrive at and that counts bytes sent to it.
//! `address` is 8-byte aligned. By one thread, before arrive_at_cluster.
__device__ __forceinline__ void start_exchange(std::uint32_t address, int arrivals = 1)
{
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

//! Says how many bytes this phase waits for from each of the cluster's blocks. By one thread, once
//! per phase.
__device__ __forceinline__ void expect_bytes(std::uint32_t address, int num_blocks,
                                             int bytes_of_each)
{
  const int bytes = num_blocks > 1 ? num_blocks * bytes_of_each : 0;
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
               : "memory");
}

//! Arrives without waiting for bytes. What a lane's warp wrote before it can be read by those that
//! waited.
__device__ __forceinline__ void arrive_at_exchange(std::uint32_t address)
{
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address) : "memory");
}

//! Waits until all bytes of the phase of this parity have come; they can be read then. By a warp.
__device__ __forceinline__ void wait_for_bytes(std::uint32_t address, int parity)
{
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE%=;\n"
      "bra WAIT%=;\n"
      "DONE%=:\n"
      "}" ::"r"(address),
      "r"(parity)
      : "memory");
  __syncwarp();
}

//! The address in block `rank` of the cluster that `address` is in this one.
[[nodiscard]] __device__ __forceinline__ std::uint32_t remote(std::uint32_t address, int rank)
{
  std::uint32_t result;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

//! *place = value in block `rank` of the cluster's `num_blocks`, four bytes of its exchange.
//! Addresses are this block's own.
__device__ __forceinline__ void send(std::uint32_t place, std::uint32_t exchange, int num_blocks,
                                     int rank, float value)
{
  if (num_blocks == 1) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(place), "f"(value) : "memory");
    return;
  }
  const std::uint32_t remote_place = remote(place, rank);
  const std::uint32_t remote_exchange = remote(exchange, rank);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   remote_place),
               "r"(__float_as_uint(value)), "r"(remote_exchange)
               : "memory");
}

}  // namespace block::detail
MHAR_NAMESPACE_END
