// SPDX-License-Identifier: Apache-2.0
//! The shared memory of a block that keeps the rows of whole positions: barriers, sums and steps on their way between warps.
#pragma once

#include <mhar/block/detail/route_storage.cuh>
#include <mhar/block/detail/row_stages.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/detail/warp_barrier.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How the rows and warps of a block are cut.
struct resident_shape
{
  stage_shape stages;
  int column_warps;  //!< that own all columns between them
  int splits;        //!< sets of column_warps that sum stages in turn
  int head_warps;
};

//! A place in the stream of batches of a block, which takes every gridDim.x-th position: batch `batch` of its turn-th one, in a
//! stage whose barriers are in phase `phase`.
struct resident_place
{
  int turn = 0;
  int batch = 0;
  int stage = 0;
  int phase = 0;

  [[nodiscard]] __device__ __forceinline__ std::int64_t position() const
  {
    return blockIdx.x + static_cast<std::int64_t>(turn) * gridDim.x;
  }
  __device__ __forceinline__ void advance(const stage_shape& shape, int batches)
  {
    stage += batches;
    if (stage >= shape.num_stages) {
      stage -= shape.num_stages;
      phase ^= 1;
    }
    batch += batches;
    while (batch >= shape.num_batches) {
      batch -= shape.num_batches;
      ++turn;
    }
  }
};

//! Of what positions alternate between: which of the two sets a turn uses, and the phase of that set's barriers.
[[nodiscard]] __device__ __forceinline__ int parity_of(int turn) { return turn & 1; }
[[nodiscard]] __device__ __forceinline__ int phase_of(int turn) { return (turn >> 1) & 1; }

//! Positions alternate between two sets of logits, steps and barriers. Sums belong to the stage that they are of: sums of row k
//! lie at sums(stage)[k*stride] (<w, s>) and squares_distance() behind (s^2).
template <class Accumulate>
class resident_storage
{
public:
  using step = thread::softmax_step<Accumulate>;

  //! Bytes in front of the stages.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::size_t bytes(const thread::width_tree& tree,
                                                                    int sources, int num_stages,
                                                                    int rows) noexcept
  {
    const int stride = route_storage<Accumulate>::stride_of(tree);
    const int elements =
        num_stages * 2 * rows * stride + stride + tree.num_heads * (6 * sources + 5);
    const std::size_t all = static_cast<std::size_t>(num_barriers(num_stages)) * 8 +
                            static_cast<std::size_t>(elements) * sizeof(Accumulate);
    return stages_offset(all);
  }

  __device__ __forceinline__ resident_storage(char* memory, const thread::width_tree& tree,
                                              int sources, int num_stages, int rows)
      : barriers_{memory},
        num_stages_{num_stages},
        rows_{rows},
        stride_{route_storage<Accumulate>::stride_of(tree)},
        num_heads_{tree.num_heads},
        of_position_{sources * tree.num_heads}
  {
    // Pairs come first: they are accessed as one.
    steps_ = reinterpret_cast<step*>(memory + num_barriers(num_stages) * 8);
    logits_ = reinterpret_cast<Accumulate*>(steps_ + 2 * of_position_);
    of_heads_ = logits_ + 2 * of_position_;
    output_sums_ = of_heads_ + 5 * num_heads_;
    sums_ = output_sums_ + stride_;
  }

  [[nodiscard]] __device__ __forceinline__ std::uint64_t* full_barriers() const
  {
    return reinterpret_cast<std::uint64_t*>(barriers_);
  }
  //! The sums of a stage have been formed.
  [[nodiscard]] __device__ __forceinline__ warp_barrier summed(int stage) const
  {
    return barrier(num_stages_ + stage);
  }
  //! A stage has been mixed, and may be filled again.
  [[nodiscard]] __device__ __forceinline__ warp_barrier empty(int stage) const
  {
    return barrier(2 * num_stages_ + stage);
  }
  //! The steps of a position are known; then its normalizers; then they have been used.
  [[nodiscard]] __device__ __forceinline__ warp_barrier stepped(int parity) const
  {
    return barrier(3 * num_stages_ + parity);
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier closed(int parity) const
  {
    return barrier(3 * num_stages_ + 2 + parity);
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier mixed(int parity) const
  {
    return barrier(3 * num_stages_ + 4 + parity);
  }

  [[nodiscard]] __device__ __forceinline__ int stride() const { return stride_; }
  [[nodiscard]] __device__ __forceinline__ Accumulate* sums(int stage) const
  {
    return sums_ + stage * 2 * rows_ * stride_;
  }
  [[nodiscard]] __device__ __forceinline__ int squares_distance() const { return rows_ * stride_; }
  [[nodiscard]] __device__ __forceinline__ Accumulate* output_sums() const { return output_sums_; }
  [[nodiscard]] __device__ __forceinline__ Accumulate* null_logits() const { return of_heads_; }
  [[nodiscard]] __device__ __forceinline__ Accumulate* maxima(int parity) const
  {
    return of_heads_ + (1 + parity) * num_heads_;
  }
  [[nodiscard]] __device__ __forceinline__ Accumulate* normalizers(int parity) const
  {
    return of_heads_ + (3 + parity) * num_heads_;
  }
  [[nodiscard]] __device__ __forceinline__ Accumulate* logits(int parity) const
  {
    return logits_ + parity * of_position_;
  }
  [[nodiscard]] __device__ __forceinline__ step* steps(int parity) const
  {
    return steps_ + parity * of_position_;
  }

private:
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int num_barriers(int num_stages) noexcept
  {
    return 3 * num_stages + 6;
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier barrier(int index) const
  {
    return {shared_address(barriers_ + index * 8)};
  }

  char* barriers_;
  int num_stages_;
  int stride_;
  int rows_;
  int num_heads_;
  int of_position_;
  step* steps_;
  Accumulate* logits_;
  Accumulate* of_heads_;
  Accumulate* output_sums_;
  Accumulate* sums_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
