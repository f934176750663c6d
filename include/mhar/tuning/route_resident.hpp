// SPDX-License-Identifier: Apache-2.0
//! How a forward call is cut whose positions fit in shared memory as a whole, as values chosen from its shape and the device.
#pragma once

#include <mhar/tuning/route.hpp>

MHAR_NAMESPACE_BEGIN
namespace tuning {

struct resident_policy
{
  int chunks_per_thread = 0;  //!< 0: positions do not fit, another kernel serves the call
  bool joined = false;        //!< each thread's chunks lie in one span
  int column_warps = 0;
  int splits = 0;
  int head_warps = 0;
  int blocks_per_multiprocessor = 0;
  int rows = 0;  //!< per stage
  int num_stages = 0;
  int num_batches = 0;
  [[nodiscard]] constexpr int threads() const noexcept
  {
    return 32 * (column_warps * (1 + splits) + head_warps + 2);
  }
};

//! Numbers for an H200.
struct resident_policy_selector
{
  static constexpr int max_stages = 32;
  //! Rows of a stage: the shorter they are the more of them, since each costs two barriers.
  [[nodiscard]] static constexpr int max_rows(int chunks_per_thread) noexcept
  {
    return chunks_per_thread == 1 ? 8 : 4;
  }
  //! Launch bounds.
  [[nodiscard]] static constexpr int max_warps(int chunks_per_thread) noexcept
  {
    return chunks_per_thread == 4 ? 20 : 32;
  }
  //! Bytes on their way to a multiprocessor that keep memory busy while one position is worked on.
  static constexpr std::size_t wanted_in_flight = std::size_t{32} << 10;
  //! Bytes of the positions of a multiprocessor's blocks below which the serial work on heads would take longer than the rows.
  static constexpr std::size_t least_at_work = std::size_t{16} << 10;
  static constexpr std::size_t reserved = 1024;

  //! `storage_bytes(stages, rows)` is what a block needs besides its stages.
  template <class StorageBytes>
  [[nodiscard]] constexpr resident_policy operator()(const thread::width_tree& tree, int num_rows,
                                                     std::size_t row_bytes,
                                                     const route_device& device,
                                                     StorageBytes storage_bytes) const noexcept
  {
    resident_policy policy;
    const int chunks = thread::deepest(tree.num_chunks);
    // All stages of a position and one more have to fit.
    if (num_rows < 1 || num_rows > (max_stages - 1) * max_rows(chunks)) { return policy; }
    const int warps = (tree.num_chunks + 32 * chunks - 1) / (32 * chunks);
    const int most = max_warps(chunks);
    policy.num_batches = (num_rows + max_rows(chunks) - 1) / max_rows(chunks);
    policy.rows = (num_rows + policy.num_batches - 1) / policy.num_batches;
    policy.num_batches = (num_rows + policy.rows - 1) / policy.rows;
    policy.column_warps = warps;
    // Four rows of a stage are one task of a warp.
    const int tasks = policy.num_batches * ((policy.rows + 3) / 4);
    policy.head_warps = tasks < 8 ? tasks : 8;
    policy.splits = 16 / warps;
    if (policy.splits < 1) { policy.splits = 1; }
    if (policy.splits > 3) { policy.splits = 3; }
    while (policy.threads() > 32 * most && policy.splits > 1) { --policy.splits; }
    while (policy.threads() > 32 * most && policy.head_warps > 1) { --policy.head_warps; }
    if (policy.threads() > 32 * most) { return policy; }
    const int resident = 32 * most / policy.threads();
    const std::size_t stage = static_cast<std::size_t>(policy.rows) * row_bytes;
    for (int blocks = resident < 8 ? resident : 8; blocks >= 1; --blocks) {
      std::size_t budget =
          device.shared_memory_per_multiprocessor / static_cast<std::size_t>(blocks) - reserved;
      if (budget > device.shared_memory_per_block) { budget = device.shared_memory_per_block; }
      int stages = max_stages;
      while (stages > policy.num_batches &&
             storage_bytes(stages, policy.rows) + static_cast<std::size_t>(stages) * stage >
                 budget) {
        --stages;
      }
      const int ahead = stages - policy.num_batches;
      const std::size_t in_flight = static_cast<std::size_t>(blocks * ahead) * stage;
      const std::size_t at_work = static_cast<std::size_t>(blocks * num_rows) * row_bytes;
      if (at_work < least_at_work || ahead < 1 || (blocks > 1 && ahead < policy.num_batches) ||
          (in_flight < wanted_in_flight && stages < max_stages)) {
        continue;
      }
      policy.blocks_per_multiprocessor = blocks;
      policy.num_stages = stages;
      policy.chunks_per_thread = chunks;
      policy.joined = tree.depth == chunks && tree.num_chunks == 32 * chunks * warps;
      return policy;
    }
    return policy;
  }
};

}  // namespace tuning
MHAR_NAMESPACE_END
