// SPDX-License-Identifier: Apache-2.0
//! A backward pass over more than 16 calls by warpgroups: what gather_tiles does, with the same bits, where code is compiled for 9.0a.
#pragma once

#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/detail/gather_finish.cuh>
#include <mhar/block/detail/gather_groups_columns.cuh>
#include <mhar/block/detail/gather_groups_copies.cuh>
#include <mhar/block/detail/gather_groups_results.cuh>
#include <mhar/block/detail/gather_groups_scores.cuh>
#include <mhar/block/detail/named_barrier.cuh>
#include <mhar/tuning/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! One head and a range of positions, in roles as gather_tiles:
//!   scores   one or two warpgroups: <w, s> and <do, s> of 16 calls and all rows by a warp, from them factors, into a ring
//!   columns  a warpgroup: the rows' gradients of all columns, and dw, which stays in registers to the end
//!   copies   two warps bring the positions, one after the other, into slots
//!   results  a warp: gradients to keep to memory
//!   finish   a warp: head sums to the other heads' blocks, finished rows to memory
//! A warpgroup has as many registers as it needs.
//!
//! Rows         bfloat16, states too
//! Threads      gather_groups::num_threads
//! Cluster      the heads
//! Shared       gather_groups_layout, at a multiple of 1024 bytes
//! Numerics     of gather_tiles, bit for bit
template <class T, int HeadWidth, int Chunks, bool Segmented>
class gather_groups
{
public:
  static_assert(cuda::std::is_same_v<T, bfloat16>, "what the products of warpgroups multiply");
  using view = detail::gather_groups_view<T, HeadWidth, Chunks, Segmented>;
  //! Queries of 160 columns leave no registers for two.
  static constexpr int score_groups = HeadWidth > 128 ? 1 : 2;
  static constexpr int num_threads = 128 * (score_groups + 2);
  //! Warps that take positions in turn need a slot each, and so do the other roles.
  static constexpr int least_slots = 4 * score_groups / Chunks + 1;
  //! Of a thread, before any are moved.
  static constexpr int registers = 65536 / num_threads / 8 * 8;

  __device__ __forceinline__ static void run(const gather_tensor_params<T>& pass,
                                             const detail::tensor_map& calls, unsigned char* shared)
  {
    // The same number for all of a warp, as the compiler can see.
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    if (warp < score_warps) {
      detail::change_registers<registers, score_registers>();
      for_each_segment(pass, shared, [&](const view& block) {
        return detail::gather_groups_scores<T, HeadWidth, Chunks, score_warps, Segmented>{block,
                                                                                          warp};
      });
    }
    else if (warp < score_warps + 4) {
      detail::change_registers<registers, column_registers>();
      for_each_segment(pass, shared, [&](const view& block) {
        return detail::gather_groups_columns<T, HeadWidth, Chunks, Segmented>{block};
      });
    }
    else {
      detail::change_registers<registers, other_registers>();
      for_each_segment(pass, shared, [&](const view& block) {
        return others{block, calls, warp - score_warps - 4};
      });
    }
  }

private:
  static constexpr int score_warps = 4 * score_groups;
  static constexpr int score_registers = HeadWidth > 128 ? 192 : 144;
  static constexpr int column_registers = HeadWidth > 128 ? 200 : 144;
  static constexpr int other_registers = HeadWidth > 128 ? 112 : 80;
  static_assert(score_groups * score_registers + column_registers + other_registers <=
                    (score_groups + 2) * registers,
                "nobody may wait for registers for ever");

  //! The warps that multiply nothing.
  struct others
  {
    const view& block;
    const detail::tensor_map& calls;
    int warp;

    __device__ __forceinline__ void run() const
    {
      constexpr int copies = 2;
      if (warp < copies) {
        detail::gather_groups_copies<T, HeadWidth, Chunks, copies, Segmented>{block, calls, warp}
            .run();
      }
      else if (warp == copies) {
        detail::gather_groups_results<T, HeadWidth, Chunks, Segmented>{block}.run();
      }
      else if (block.at.batch() == view::layout::max_batch) {
        detail::gather_finish<view, view::layout::max_batch>{block}.run();
      }
      else {
        detail::gather_finish<view, 1>{block}.run();
      }
    }
  };

  //! The role's part of every segment; a barrier of the block stands between two. Parameters are read before the
  //! kernels in front have ended.
  template <class Make>
  __device__ __forceinline__ static void for_each_segment(const gather_tensor_params<T>& pass,
                                                          unsigned char* shared, Make&& make)
  {
    const int segments =
        Segmented ? (pass.num_calls + pass.calls_per_segment - 1) / pass.calls_per_segment : 1;
    // Every role meets the others in code of its own.
    constexpr detail::named_barrier<1> everyone{num_threads};
#pragma unroll 1
    for (int segment = 0; segment < segments; ++segment) {
      const view block{pass, shared, segment};
      if (threadIdx.x == 0) { block.init_barriers(); }
      __syncwarp();
      detail::arrive_at_cluster();
      block.fill(num_threads);
      everyone.sync();
      detail::wait_for_cluster();
      auto role = make(block);
      if (segment == 0) {
        detail::wait_for_dependencies();
        detail::release_dependents();
      }
      role.run();
      if (Segmented) { everyone.sync(); }
    }
  }
};

}  // namespace block
MHAR_NAMESPACE_END
