// SPDX-License-Identifier: Apache-2.0
//! The warp of gather_groups that stores gradients to keep.
#pragma once

#include <mhar/block/detail/gather_groups_view.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! The finished row is left to the warp that ends it, but between two segments, which leave it where it
//! will lie.
template <class T, int HeadWidth, int Chunks, bool Segmented>
class gather_groups_results
{
public:
  using view = gather_groups_view<T, HeadWidth, Chunks, Segmented>;
  using layout = typename view::layout;

  __device__ __forceinline__ explicit gather_groups_results(const view& block)
      : block_{block}, line_{block.lane / vectors}, vector_{block.lane % vectors}
  {
  }

  __device__ __forceinline__ void run() const
  {
    const gather_tensor_params<T>& pass = block_.pass;
    const std::int64_t column = block_.head * HeadWidth + vector_ * 8;
    T* to = static_cast<T*>(pass.states) + block_.first * pass.width + column +
            line_ * pass.slot_stride;
    T* top = pass.row_gradient + block_.first * pass.gradient_stride + column;
    const bool top_is_apart = Segmented && pass.finishes;
    const int first = block_.finishes() || (top_is_apart && pass.row_gradient == nullptr) ? 1 : 0;
    ring_place slot;
#pragma unroll 1
    for (int p = 0; p < block_.count; ++p) {
      block_.done(slot.index).wait(slot.phase);
      const std::uint32_t from =
          block_.slot(slot.index) +
          static_cast<std::uint32_t>(layout::states + line_ * layout::state_bytes + vector_ * 16);
      uint4 values[static_cast<std::size_t>(rounds)][static_cast<std::size_t>(layout::tiles)];
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int x = 0; x < layout::tiles; ++x) {
          values[r][x] =
              load_16_bytes(from + r * lines * layout::state_bytes + x * layout::line_bytes);
        }
      }
      block_.empty(slot.index).arrive();
      slot.advance(block_.at.num_slots);
      T* row = to;
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
        const int m = r * lines + line_;
        if (m >= first && m < pass.num_rows) {
          T* const place = r == 0 && m == 0 && top_is_apart ? top : row;
#pragma unroll
          for (int x = 0; x < layout::tiles; ++x) {
            store_16_bytes(place + x * vectors * 8, values[r][x]);
          }
        }
        row += lines * pass.slot_stride;
      }
      to += pass.width;
      top += pass.gradient_stride;
    }
  }

private:
  static constexpr int vectors = layout::line_vectors;
  static constexpr int lines = 32 / vectors;
  static constexpr int rounds = layout::members / lines;

  const view& block_;
  int line_;
  int vector_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
