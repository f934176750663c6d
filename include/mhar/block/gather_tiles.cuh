// SPDX-License-Identifier: Apache-2.0
//! A backward pass over many calls: warps of four roles hand a position's pieces to each other
//! through shared memory, and everything is a product on tensor cores.
#pragma once

#include <mhar/block/detail/gather_finish.cuh>
#include <mhar/block/detail/gather_tiles_columns.cuh>
#include <mhar/block/detail/gather_tiles_copies.cuh>
#include <mhar/block/detail/gather_tiles_scores.cuh>
#include <mhar/tuning/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! One head and a range of positions.
//!   copies   two warps bring the positions, one after the other, into slots
//!   scores   four warps: <w, s> and <do, s> of 16 calls and all rows, from them factors, into a ring
//!   columns  a warp per 32 or 16 columns: the rows' gradients, from the factors of all calls; and dw,
//!            which stays in registers to the end
//!   finish   one warp: head sums to the other heads' blocks, results to memory
//! Nothing but the hand-over of slots and factors makes a warp wait. Segmented: an object serves one
//! segment of the calls, and a barrier of the block stands between two.
//!
//! Threads      gather_tiles::num_threads
//! Cluster      the heads
//! Shared       gather_tiles_layout
//! Numerics     calls in chunks of 16; a position's bits do not depend on the number of rows
template <class T, int HeadWidth, int Chunks, int MemberTiles, class State, bool Segmented>
class gather_tiles
{
public:
  using view = detail::gather_tiles_view<T, HeadWidth, MemberTiles, State, Segmented>;
  static constexpr int score_warps = tuning::sweep_policy::gather_score_warps;
  static constexpr int column_tiles =
      Chunks <= 4 ? 2 : 1;  //!< of a warp: dw of many calls fills the registers
  static constexpr int column_warps = HeadWidth / 16 / column_tiles;
  static constexpr int copy_warps = Chunks <= 4 ? 2 : 1;
  static constexpr int num_threads = 32 * (score_warps + column_warps + copy_warps + 1);

  __device__ __forceinline__ gather_tiles(const gather_tensor_params<T>& pass,
                                          unsigned char* shared, int segment)
      : view_{pass, shared, segment}, shared_{shared}
  {
  }

  //! Reads parameters only: before the kernels in front have ended.
  __device__ __forceinline__ void prepare()
  {
    if (threadIdx.x == 0) { view_.init_barriers(column_warps); }
    __syncwarp();
    detail::arrive_at_cluster();
    view_.copy_queries(shared_, num_threads);
    __syncthreads();
    detail::wait_for_cluster();
  }

  __device__ __forceinline__ void run()
  {
    const int warp = static_cast<int>(threadIdx.x / 32);
    if (warp < score_warps) {
      detail::gather_tiles_scores<T, HeadWidth, score_warps, (Chunks <= score_warps), MemberTiles,
                                  State, Segmented>{view_, warp}
          .run();
    }
    else if (warp < score_warps + column_warps) {
      detail::gather_tiles_columns<T, HeadWidth, Chunks, column_tiles, MemberTiles, State,
                                   Segmented>{view_, warp - score_warps}
          .run();
    }
    else if (warp < score_warps + column_warps + copy_warps) {
      detail::gather_tiles_copies<T, HeadWidth, copy_warps, MemberTiles, State, Segmented>{
          view_, warp - score_warps - column_warps}
          .run();
    }
    else if (view_.at.batch() == view::layout::max_batch) {
      detail::gather_finish<view, view::layout::max_batch>{view_}.run();
    }
    else if (view_.at.batch() == view::layout::max_batch / 2) {
      detail::gather_finish<view, view::layout::max_batch / 2>{view_}.run();
    }
    else {
      detail::gather_finish<view, 1>{view_}.run();
    }
  }

private:
  view view_;
  unsigned char* shared_;
};

}  // namespace block
MHAR_NAMESPACE_END
