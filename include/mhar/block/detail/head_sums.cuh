// SPDX-License-Identifier: Apache-2.0
//! Sums over heads that the blocks of a cluster send each other: of every row, dl * u. Compute
//! capability 9.0.
#pragma once

#include <mhar/block/detail/piece_sums.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! One team's, for eight rows. Two sets of places in turn: a warp that sends for round r + 2 has got
//! everything of round r + 1, so all have read what came in round r. A split head that is the only
//! one has nothing to wait for.
template <bool Split>
class head_sums
{
public:
  static constexpr int max_rows = 8;
  static constexpr int max_heads = 8;

  //! Of all teams; a multiple of 16.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int bytes(int teams)
  {
    return teams * 2 * (set_size * 4 + 8);
  }

  __device__ __forceinline__ head_sums(const warp_place<Split>& place, int num_heads, float* memory)
      : place_{place},
        num_heads_{num_heads},
        sums_{memory + place.team * 2 * set_size},
        barriers_{shared_address(memory + place.num_teams() * 2 * set_size) +
                  static_cast<unsigned>(place.team * 16)}
  {
  }

  //! By one lane of the team, before the cluster's barrier.
  __device__ __forceinline__ void start() const
  {
    start_exchange(barriers_);
    start_exchange(barriers_ + 8);
  }

  //! In front of the round's send.
  __device__ __forceinline__ void expect(int round) const
  {
    if (waits() && lane() == 0 && place_.piece == 0) {
      expect_bytes(barrier(round), num_heads_, max_rows * 4);
    }
  }

  //! Lane 4*i + q has the head's own sums of rows 2q and 2q + 1, the same for all i.
  __device__ __forceinline__ void send(int round, const float (&own)[2]) const
  {
    const int num_blocks = num_heads_ * place_.spread;
    const int rank = lane() / 4;
    if (Split && (num_heads_ == 1 || !place_.is_first())) { return; }
    if (rank >= num_blocks) { return; }
    const std::uint32_t to =
        shared_address(set(round) + lane() % 4 * 2 * max_heads + place_.head());
    detail::send(to, barrier(round), num_blocks, rank, own[0]);
    detail::send(to + max_heads * 4, barrier(round), num_blocks, rank, own[1]);
  }

  //! Waits for all heads. Lane m: `kept` and the heads' sums of row m in order; 0 past the last row.
  [[nodiscard]] __device__ __forceinline__ float add_to(float kept, int round,
                                                        const float (&own)[2], int num_rows) const
  {
    if (waits()) { wait_for_bytes(barrier(round), round / 2 % 2); }
    float total = kept;
    if (Split && num_heads_ == 1) {
      const float first = __shfl_sync(0xffffffffu, own[0], lane() / 2);
      const float second = __shfl_sync(0xffffffffu, own[1], lane() / 2);
      total += lane() % 2 == 0 ? first : second;
    }
    if (lane() >= num_rows) { return 0; }
    if (waits()) {
      const float* const sums = set(round) + lane() * max_heads;
      for (int h = 0; h < num_heads_; ++h) { total += sums[h]; }
    }
    return total;
  }

private:
  static constexpr int set_size = max_rows * max_heads;

  [[nodiscard]] __device__ __forceinline__ static int lane()
  {
    return static_cast<int>(threadIdx.x % 32);
  }
  [[nodiscard]] __device__ __forceinline__ bool waits() const { return !Split || num_heads_ > 1; }
  [[nodiscard]] __device__ __forceinline__ float* set(int round) const
  {
    return sums_ + round % 2 * set_size;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t barrier(int round) const
  {
    return barriers_ + static_cast<unsigned>(round % 2 * 8);
  }

  warp_place<Split> place_;
  int num_heads_;
  float* sums_;  // [2][rows][heads]
  std::uint32_t barriers_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
