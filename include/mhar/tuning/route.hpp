// SPDX-License-Identifier: Apache-2.0
//! How a forward call is cut into blocks, chunks and stages, as values chosen from its shape and the device.
#pragma once

#include <mhar/config.hpp>

#include <cstddef>

MHAR_NAMESPACE_BEGIN
namespace tuning {

//! What the choice depends on; sizes in bytes.
struct route_shape
{
  int num_chunks;  //!< of a row
  int num_rows;
  std::size_t row_bytes;
  std::size_t storage_bytes;  //!< of a block's shared sums and states
};
struct route_device
{
  std::size_t shared_memory_per_block;
  std::size_t shared_memory_per_multiprocessor;
};

struct route_policy
{
  int chunks_per_thread = 0;  //!< 0: the rows do not fit, another kernel serves the call
  int threads = 0;
  int blocks_per_multiprocessor = 0;
  int rows = 0;  //!< per stage
  int num_stages = 0;
  std::size_t shared_memory = 0;
};

//! Numbers found on an H200; measured in bench/call_forward.cu.
struct route_policy_selector
{
  static constexpr int rows_per_batch = 4;
  static constexpr int max_stages = 8;
  static constexpr int wanted_warps = 20;  //!< per multiprocessor: they hide one another's barriers
  static constexpr std::size_t reserved =
      1024;  //!< shared memory that the system takes from each block

  [[nodiscard]] static constexpr int max_threads(int chunks_per_thread) noexcept
  {
    return chunks_per_thread == 1 ? 256 : 512;
  }

  [[nodiscard]] constexpr route_policy operator()(const route_shape& shape,
                                                  const route_device& device) const noexcept
  {
    route_policy policy;
    int chunks_per_thread = 1;
    while (chunks_per_thread < 4 &&
           shape.num_chunks > chunks_per_thread * max_threads(chunks_per_thread)) {
      chunks_per_thread *= 2;
    }
    if (shape.num_chunks > chunks_per_thread * max_threads(chunks_per_thread)) { return policy; }
    const int warps = (shape.num_chunks + 32 * chunks_per_thread - 1) / (32 * chunks_per_thread);
    policy.threads = 32 * warps;

    // Batches of equal size: 9 rows are 3 + 3 + 3, not 4 + 4 + 1.
    const int num_batches =
        shape.num_rows == 0 ? 1 : (shape.num_rows + rows_per_batch - 1) / rows_per_batch;
    const int balanced = (shape.num_rows + num_batches - 1) / num_batches;
    const int wanted_blocks = wanted_warps / warps > 1 ? wanted_warps / warps : 1;
    for (int blocks = wanted_blocks; blocks >= 1; --blocks) {
      for (int rows = balanced > 1 ? balanced : 1; rows >= 1; --rows) {
        std::size_t budget =
            device.shared_memory_per_multiprocessor / static_cast<std::size_t>(blocks) - reserved;
        if (budget > device.shared_memory_per_block) { budget = device.shared_memory_per_block; }
        if (budget < shape.storage_bytes) { break; }
        const std::size_t stage = static_cast<std::size_t>(rows) * shape.row_bytes;
        const std::size_t fitting = (budget - shape.storage_bytes) / stage;
        const int stages = fitting < max_stages ? static_cast<int>(fitting) : max_stages;
        // Fewer than three stages leave memory idle while a batch is worked on: rather fewer rows or fewer blocks.
        if (stages < 3 && !(blocks == 1 && rows == 1 && stages == 2)) { continue; }
        policy.chunks_per_thread = chunks_per_thread;
        policy.blocks_per_multiprocessor = blocks;
        policy.rows = rows;
        policy.num_stages = stages;
        policy.shared_memory = shape.storage_bytes + static_cast<std::size_t>(stages) * stage;
        return policy;
      }
    }
    return policy;
  }
};

}  // namespace tuning
MHAR_NAMESPACE_END
