// SPDX-License-Identifier: Apache-2.0
//! Heads that are wider than what a warp holds: which columns a warp has, and sums over all of a
//! head's columns, found by every warp alike. Compute capability 9.0.
#pragma once

#include <mhar/block/detail/cluster_exchange.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A head is `spread` blocks of a cluster, which are neighbours along x, and a block has `pieces`
//! of it. A team is one warp per piece and works on one position; a block is as many teams as it
//! has warps for. A head that is not split is one piece, and a team one warp.
template <bool Split>
struct warp_place
{
  int pieces;
  int spread;
  int team;
  int piece;  // of the block's

  __device__ __forceinline__ warp_place(int num_pieces, int num_blocks)
      : pieces{Split ? num_pieces : 1}, spread{Split ? num_blocks : 1}
  {
    const int warp = static_cast<int>(threadIdx.x / 32);
    team = Split ? warp / pieces : warp;
    piece = Split ? warp - team * pieces : 0;
  }
  [[nodiscard]] __device__ __forceinline__ int num_teams() const
  {
    return static_cast<int>(blockDim.x / 32) / pieces;
  }
  [[nodiscard]] __device__ __forceinline__ int head() const
  {
    return static_cast<int>(blockIdx.x) / spread;
  }
  //! The block's first piece, and this warp's, counted over all heads.
  [[nodiscard]] __device__ __forceinline__ int first_unit() const
  {
    return static_cast<int>(blockIdx.x) * pieces;
  }
  [[nodiscard]] __device__ __forceinline__ int unit() const { return first_unit() + piece; }
  //! Whether this warp speaks for its head.
  [[nodiscard]] __device__ __forceinline__ bool is_first() const
  {
    return piece == 0 && static_cast<int>(blockIdx.x) % spread == 0;
  }
};

//! One team's sums of `Numbers` (2 or 4) floats per lane over the pieces of its head, in order, and
//! one float per lane that the head's first piece passes on. Two sets of places: a warp that sends
//! for round r + 2 has got everything of round r + 1, so all have read what came in round r.
template <int Numbers, bool PassesOn>
class piece_sums
{
public:
  //! Of one team; a multiple of 16.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int bytes(int pieces_of_head)
  {
    return 2 * set_bytes(pieces_of_head) + 16;
  }

  __device__ __forceinline__ piece_sums(const warp_place<true>& place, std::uint32_t memory)
      : place_{place}, memory_{memory + static_cast<unsigned>(place.team * bytes(num_pieces()))}
  {
  }

  //! By one lane of the team, before the cluster's barrier.
  __device__ __forceinline__ void start() const
  {
    for (int parity = 0; parity < 2; ++parity) {
      start_exchange(barrier(parity), place_.spread == 1 ? place_.pieces : 1);
    }
  }

  //! All lanes; `passed` counts in the first piece alone.
  __device__ __forceinline__ void send(int round,
                                       const float (&values)[static_cast<std::size_t>(Numbers)],
                                       float passed = 0) const
  {
    const std::uint32_t to =
        set(round) + static_cast<unsigned>(index() * piece_bytes + lane() * Numbers * 4);
    const std::uint32_t first =
        set(round) + static_cast<unsigned>(num_pieces() * piece_bytes + lane() * 4);
    if (place_.spread == 1) {
      store(to, values);
      if (PassesOn && index() == 0) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(first), "f"(passed) : "memory");
      }
      __syncwarp();
      if (lane() == 0) { arrive_at_exchange(barrier(round)); }
      return;
    }
    if (place_.piece == 0 && lane() == 0) {
      expect_bytes(barrier(round), place_.spread, set_bytes(num_pieces()) / place_.spread);
    }
    for (int r = 0; r < place_.spread; ++r) {
      const int rank = first_rank() + r;
      store_remote(to, barrier(round), rank, values);
      if (PassesOn && index() == 0) {
        detail::send(first, barrier(round), place_.spread, rank, passed);
      }
    }
  }

  //! Waits for all pieces; what the first one passed on.
  [[nodiscard]] __device__ __forceinline__ float add(
      int round, float (&sums)[static_cast<std::size_t>(Numbers)]) const
  {
    wait_for_bytes(barrier(round), round / 2 % 2);
    std::uint32_t from = set(round) + static_cast<unsigned>(lane() * Numbers * 4);
#pragma unroll
    for (int i = 0; i < Numbers; ++i) { sums[i] = 0; }
#pragma unroll 4
    for (int x = 0; x < num_pieces(); ++x) {
      float values[static_cast<std::size_t>(Numbers)];
      load(from, values);
#pragma unroll
      for (int i = 0; i < Numbers; ++i) { sums[i] += values[i]; }
      from += piece_bytes;
    }
    float passed = 0;
    if constexpr (PassesOn) {
      from = set(round) + static_cast<unsigned>(num_pieces() * piece_bytes + lane() * 4);
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(passed) : "r"(from) : "memory");
    }
    return passed;
  }

private:
  static_assert(Numbers == 2 || Numbers == 4, "one vector per lane");
  static constexpr int piece_bytes = 32 * Numbers * 4;

  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int set_bytes(int pieces_of_head)
  {
    return pieces_of_head * piece_bytes + (PassesOn ? 128 : 0);
  }
  [[nodiscard]] __device__ __forceinline__ static int lane()
  {
    return static_cast<int>(threadIdx.x % 32);
  }
  [[nodiscard]] __device__ __forceinline__ int num_pieces() const
  {
    return place_.pieces * place_.spread;
  }
  //! This warp's piece of the head.
  [[nodiscard]] __device__ __forceinline__ int index() const
  {
    return place_.unit() - place_.head() * num_pieces();
  }
  //! Of the head's first block in its cluster.
  [[nodiscard]] __device__ __forceinline__ int first_rank() const
  {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank - static_cast<int>(blockIdx.x) % place_.spread;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t set(int round) const
  {
    return memory_ + 16 + static_cast<unsigned>(round % 2 * set_bytes(num_pieces()));
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t barrier(int round) const
  {
    return memory_ + static_cast<unsigned>(round % 2 * 8);
  }

  __device__ __forceinline__ static void store(
      std::uint32_t to, const float (&values)[static_cast<std::size_t>(Numbers)])
  {
    if constexpr (Numbers == 2) {
      asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(values[0]), "f"(values[1])
                   : "memory");
    }
    else {
      asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(values[0]),
                   "f"(values[1]), "f"(values[2]), "f"(values[3])
                   : "memory");
    }
  }
  __device__ __forceinline__ static void load(std::uint32_t from,
                                              float (&values)[static_cast<std::size_t>(Numbers)])
  {
    if constexpr (Numbers == 2) {
      asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                   : "=f"(values[0]), "=f"(values[1])
                   : "r"(from)
                   : "memory");
    }
    else {
      asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                   : "r"(from)
                   : "memory");
    }
  }
  __device__ __forceinline__ static void store_remote(
      std::uint32_t to, std::uint32_t exchange, int rank,
      const float (&values)[static_cast<std::size_t>(Numbers)])
  {
    const std::uint32_t place = remote(to, rank);
    const std::uint32_t counter = remote(exchange, rank);
    if constexpr (Numbers == 2) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(
              place),
          "f"(values[0]), "f"(values[1]), "r"(counter)
          : "memory");
    }
    else {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, "
          "[%5];" ::"r"(place),
          "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(counter)
          : "memory");
    }
  }

  warp_place<true> place_;
  std::uint32_t memory_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
