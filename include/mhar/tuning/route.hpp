// SPDX-License-Identifier: Apache-2.0
//! How a forward call is cut into blocks, chunks and stages, as values chosen from its shape and the device.
#pragma once

#include <mhar/thread/width_tree.hpp>

#include <cstddef>

MHAR_NAMESPACE_BEGIN
namespace tuning {

//! What the choice depends on; sizes in bytes.
struct route_shape
{
  thread::width_tree tree;
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
  bool joined = false;        //!< each thread's chunks lie in one span
  int threads = 0;
  int head_threads = 0;  //!< of them, those that serve the heads
  int blocks_per_multiprocessor = 0;
  int rows = 0;  //!< per stage
  int num_stages = 0;
  std::size_t shared_memory = 0;
};

//! Numbers found on an H200 with bench/call_forward.cu.
struct route_policy_selector
{
  static constexpr int rows_per_batch = 4;
  static constexpr int max_stages = 8;
  //! Bytes on their way to a multiprocessor that keep memory busy: bandwidth times latency is about 32 KiB.
  static constexpr std::size_t wanted_in_flight = std::size_t{40} << 10;
  //! Shared memory that the system takes from each block.
  static constexpr std::size_t reserved = 1024;

  //! Launch bounds by chunks per thread and threads.
  struct bounds
  {
    int max_threads;
    int min_blocks;
  };
  [[nodiscard]] static constexpr bounds bounds_of(int chunks_per_thread, int threads) noexcept
  {
    if (chunks_per_thread == 1) { return {192, 4}; }
    if (chunks_per_thread == 2 && threads <= 288) { return {288, 2}; }
    return {512, 1};
  }

  [[nodiscard]] constexpr route_policy operator()(const route_shape& shape,
                                                  const route_device& device) const noexcept
  {
    route_policy policy;
    const int chunks_per_thread = thread::deepest(shape.tree.num_chunks);
    const int warps =
        (shape.tree.num_chunks + 32 * chunks_per_thread - 1) / (32 * chunks_per_thread);
    const int head_warps = shape.tree.num_heads <= 64 ? 1 : 2;
    const int threads = 32 * (warps + head_warps);
    const bounds limits = bounds_of(chunks_per_thread, threads);
    if (threads > limits.max_threads) { return policy; }

    // Batches of equal size: 9 rows are 3 + 3 + 3, not 4 + 4 + 1.
    const int num_batches =
        shape.num_rows == 0 ? 1 : (shape.num_rows + rows_per_batch - 1) / rows_per_batch;
    const int balanced = shape.num_rows == 0 ? 1 : (shape.num_rows + num_batches - 1) / num_batches;
    // Registers are handed out for two warps at a time.
    const int resident = limits.min_blocks * limits.max_threads / ((threads + 63) / 64 * 64);

    for (int blocks = resident < 16 ? resident : 16; blocks >= 1; --blocks) {
      for (int rows = balanced; rows >= 1; --rows) {
        std::size_t budget =
            device.shared_memory_per_multiprocessor / static_cast<std::size_t>(blocks) - reserved;
        if (budget > device.shared_memory_per_block) { budget = device.shared_memory_per_block; }
        if (budget < shape.storage_bytes) { break; }
        const std::size_t stage = static_cast<std::size_t>(rows) * shape.row_bytes;
        const std::size_t fitting = (budget - shape.storage_bytes) / stage;
        const int stages = fitting < max_stages ? static_cast<int>(fitting) : max_stages;
        // Two batches are worked on at a time, and a third has just been.
        if (stages < 4 && !(stages == 3 && rows == 1)) { continue; }
        const std::size_t in_flight = static_cast<std::size_t>(blocks * (stages - 3)) * stage;
        if (in_flight < wanted_in_flight && (blocks > 1 || rows > 1) && stages < max_stages) {
          continue;
        }
        policy.chunks_per_thread = chunks_per_thread;
        policy.joined = shape.tree.depth == chunks_per_thread &&
                        shape.tree.num_chunks == 32 * chunks_per_thread * warps;
        policy.threads = threads;
        policy.head_threads = 32 * head_warps;
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
