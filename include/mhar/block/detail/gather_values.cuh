// SPDX-License-Identifier: Apache-2.0
//! What a warp brings of a position beside whole rows: in backward passes over many calls.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/gather_view.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! lse and D of the calls, the newest call's mix, inverse rms and kept head sums of the rows; and what is kept of the
//! finished row between two segments.
template <class View>
class gather_values
{
public:
  using layout = typename View::layout;
  using T = typename View::element;

  __device__ __forceinline__ gather_values(const View& block, std::int64_t position)
      : block_{block}, member_{(min)(block.lane, block.pass.num_rows - 1)}
  {
    const gather_tensor_params<T>& pass = block.pass;
    const std::int64_t column = block.head * layout::head_width + block.lane * 8;
    next_top_ = pass.row_gradient + position * pass.gradient_stride + column;
    next_mix_ = pass.mix + position * pass.mix_position_stride + column;
    next_head_ = block.head_index(block.lane, position);
    next_inverse_ = pass.inverse_rms + position - member_ * pass.num_positions;
    next_sum_ = pass.head_sums + position + member_ * pass.num_positions;
  }

  //! The finished row is row 0 of the states.
  __device__ __forceinline__ void start(std::uint32_t slot) const
  {
    const gather_tensor_params<T>& pass = block_.pass;
    const auto vector = static_cast<std::uint32_t>(block_.lane * 16);
    const bool has_vector = block_.lane < layout::head_width / 8;
    if (block_.top_is_elsewhere() && pass.row_gradient != nullptr && has_vector) {
      copy_async(slot + static_cast<std::uint32_t>(block_.at.states) + vector, next_top_);
    }
    if (block_.has_mix() && has_vector) {
      copy_async(slot + static_cast<std::uint32_t>(block_.at.mix) + vector, next_mix_);
    }
    const std::uint32_t values = slot + static_cast<std::uint32_t>(block_.lane * 4);
    const std::int64_t group = 32 * pass.num_positions * pass.num_heads;
    std::int64_t head = next_head_;
#pragma unroll 1
    for (int c = block_.lane; c < block_.num_calls(); c += 32) {
      const auto place = static_cast<std::uint32_t>((c - block_.lane) * 4);
      copy_async_4(values + static_cast<std::uint32_t>(block_.at.lse) + place, pass.lse + head);
      if (c > 0 || !block_.has_mix()) {
        copy_async_4(values + static_cast<std::uint32_t>(block_.at.dot) + place, pass.dot + head);
      }
      head += group;
    }
    if (block_.lane < layout::members) {
      copy_async_4(values + static_cast<std::uint32_t>(block_.at.inverse), next_inverse_);
      if (block_.kept() && (member_ > 0 || !block_.top_is_elsewhere())) {
        copy_async_4(values + static_cast<std::uint32_t>(block_.at.kept_sums), next_sum_);
      }
    }
  }

  __device__ __forceinline__ void step(int positions)
  {
    const gather_tensor_params<T>& pass = block_.pass;
    next_top_ += positions * pass.gradient_stride;
    next_mix_ += positions * pass.mix_position_stride;
    next_head_ += positions * pass.num_heads;
    next_inverse_ += positions;
    next_sum_ += positions;
  }

private:
  const View& block_;
  int member_;  // of this lane

  // Of the position that comes next, this lane's.
  const T* next_top_;  // of the finished row, when calls come in segments
  const T* next_mix_;
  std::int64_t next_head_;
  const float* next_inverse_;
  const float* next_sum_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
