// SPDX-License-Identifier: Apache-2.0
//! What the warps of a backward pass over many calls share: the block's range, its part of the calls, and the barriers and places
//! that do not depend on who makes the products.
#pragma once

#include <mhar/block/detail/cluster_exchange.cuh>
#include <mhar/block/detail/shared_memory.cuh>
#include <mhar/block/detail/warp_barrier.cuh>
#include <mhar/block/sweep_tensor_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Barriers: a slot is full (copies), done (columns), empty (finish, and whoever else reads what is done); a group of factors is full
//! (scores), empty (columns); head sums have come.
//!
//! Segmented: `pass` has more calls than registers have dw for. They come in segments, for all positions of the block one
//! after the other, between which a row's gradient is kept as a pass would keep it: that of the row to
//! finish in its place, its head sums on chip.
template <class T, class Layout, bool Segmented>
struct gather_view
{
  using element = T;
  using layout = Layout;
  static constexpr bool segmented = Segmented;

  const gather_tensor_params<T>& pass;
  layout at;
  std::uint32_t base;  // of shared memory
  int lane;
  int row;   // i
  int quad;  // q
  int head;
  std::int64_t first;  // position of this block
  int count;           // of its positions
  int segment;         // of the calls

  __device__ __forceinline__ gather_view(const gather_tensor_params<T>& params,
                                         unsigned char* memory, int which, const layout& places)
      : pass{params},
        at{places},
        base{kept_value(shared_address(memory))},
        lane{kept_value(static_cast<int>(threadIdx.x % 32))},
        row{lane / 4},
        quad{lane % 4},
        head{static_cast<int>(blockIdx.x)},
        first{std::int64_t{blockIdx.y} * params.positions_per_block},
        segment{which}
  {
    const std::int64_t rest = params.num_positions - first;
    count = static_cast<int>(rest < params.positions_per_block ? rest : params.positions_per_block);
  }

  //! @name The segment's part of the pass.
  //! @{
  [[nodiscard]] __device__ __forceinline__ int first_call() const
  {
    return Segmented ? segment * pass.calls_per_segment : 0;
  }
  [[nodiscard]] __device__ __forceinline__ int num_calls() const
  {
    return Segmented ? (min)(pass.num_calls - first_call(), pass.calls_per_segment)
                     : pass.num_calls;
  }
  [[nodiscard]] __device__ __forceinline__ bool kept() const
  {
    return pass.kept || (Segmented && segment > 0);
  }
  [[nodiscard]] __device__ __forceinline__ bool finishes() const
  {
    return pass.finishes && (!Segmented || first_call() + num_calls() == pass.num_calls);
  }
  [[nodiscard]] __device__ __forceinline__ bool has_mix() const
  {
    return pass.mix != nullptr && (!Segmented || segment == 0);
  }
  //! Whether what is kept of the top row lies where its gradient will, not in a slot of the states.
  [[nodiscard]] __device__ __forceinline__ bool top_is_elsewhere() const
  {
    return Segmented && segment > 0 && pass.finishes;
  }
  //! @}

  //! Addresses of shared memory.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t address(int offset) const
  {
    return base + static_cast<std::uint32_t>(offset);
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t slot(int index) const
  {
    return address(at.slots + index * at.slot_bytes);
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier barrier(int index) const
  {
    return {address(at.barriers + index * 8)};
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier full(int index) const
  {
    return barrier(index);
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier done(int index) const
  {
    return barrier(layout::max_slots + index);
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier empty(int index) const
  {
    return barrier(2 * layout::max_slots + index);
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier factors_full(int group) const
  {
    return barrier(3 * layout::max_slots + group);
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier factors_empty(int group) const
  {
    return barrier(3 * layout::max_slots + layout::max_groups + group);
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t exchange(int place) const
  {
    return barrier(3 * layout::max_slots + 2 * layout::max_groups + place).address;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t top_sum(int position) const
  {
    return address(at.top_sums + position * 4);
  }
  //! What a head has sent for the rows of a batch of positions.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t sent_sums(int place, int from) const
  {
    return address(at.sent_sums + (place * pass.num_heads + from) * layout::sent_bytes);
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index(int call,
                                                                   std::int64_t position) const
  {
    return ((first_call() + call) * pass.num_positions + position) * pass.num_heads + head;
  }

  //! Barriers are readied by one thread, again for every segment.
  __device__ __forceinline__ void begin(const warp_barrier& one, int arrivals) const
  {
    if (Segmented && segment > 0) { one.end(); }
    one.init(arrivals);
  }
  __device__ __forceinline__ void begin_exchanges() const
  {
    for (int x = 0; x < layout::num_exchanges; ++x) {
      if (Segmented && segment > 0) { warp_barrier{exchange(x)}.end(); }
      start_exchange(exchange(x));
    }
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
