// SPDX-License-Identifier: Apache-2.0
//! How a forward call is cut whose positions are each served by one warp, as values chosen from its shape.
#pragma once

#include <mhar/thread/width_tree.hpp>

MHAR_NAMESPACE_BEGIN
namespace tuning {

struct warp_policy
{
  int chunks = 0;  //!< of a lane; 0: the shape does not fit, another kernel serves the call
  int spans = 0;   //!< of a lane
  int split = 1;   //!< warps of a position
};

//! Numbers found on an H200.
struct warp_policy_selector
{
  static constexpr int max_slots = 31;  //!< of a warp's ring; one lane asks for each

  //! Warps of a block, one to a multiprocessor, by the registers that the mix takes.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int warps(int chunks, int split) noexcept
  {
    return chunks <= 5 || (chunks <= 8 && split > 1) ? 16 : chunks <= 8 ? 12 : 8;
  }
  //! Rows that are summed together. Wide ones are few in a ring, and longer to sum.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int rows(int chunks) noexcept
  {
    return chunks <= 5 ? 4 : chunks <= 8 ? 2 : 1;
  }
  //! Positions per multiprocessor from which warps are busy enough: a warp takes the longer the more rows there are.
  [[nodiscard]] static constexpr int least_positions(const warp_policy& policy,
                                                     int num_rows) noexcept
  {
    return policy.chunks <= 8 && num_rows <= 12 ? 4 : 8;
  }

  static constexpr int max_chunks = 8;

  //! Every lane has whole chunks of one head, and a head has at least four lanes. Where that would be too many chunks, two warps
  //! share the heads.
  [[nodiscard]] constexpr warp_policy operator()(const thread::width_tree& tree) const noexcept
  {
    warp_policy policy;
    if (tree.lanes_per_head < 4 || tree.lanes_per_head * tree.num_heads != 32 || tree.depth > 2) {
      return policy;
    }
    policy.split = tree.num_chunks <= 32 * max_chunks ? 1 : 2;
    const int lanes = tree.lanes_per_head * policy.split;
    if (tree.num_heads % policy.split == 0 && tree.chunks_per_head % lanes == 0 &&
        tree.group * tree.depth >= lanes) {
      policy.chunks = tree.chunks_per_head / lanes;
      policy.spans = tree.spans_per_head;
    }
    return policy;
  }
};

}  // namespace tuning
MHAR_NAMESPACE_END
