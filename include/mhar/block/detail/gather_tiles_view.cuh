// SPDX-License-Identifier: Apache-2.0
//! What the warps of gather_tiles share: the block's range, and where everything lies.
#pragma once

#include <mhar/block/detail/cluster_exchange.cuh>
#include <mhar/block/detail/shared_memory.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/detail/warp_barrier.cuh>
#include <mhar/block/gather_tiles_layout.cuh>
#include <mhar/block/sweep_tensor_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Barriers: a slot is full (copies), done (columns), empty (finish); a group of factors is full
//! (scores), empty (columns); head sums have come.
//!
//! Segmented: `pass` has more calls than registers have dw for. They come in segments, for all positions of the block one
//! after the other, between which a row's gradient is kept as a pass would keep it: that of the row to
//! finish in its place, its head sums on chip.
template <class T, int HeadWidth, int MemberTiles, class State, bool Segmented>
struct gather_tiles_view
{
  using layout = gather_tiles_layout<T, HeadWidth, MemberTiles, State>;
  static constexpr int row_bytes = layout::row_bytes;
  static constexpr int state_bytes = layout::state_bytes;
  static constexpr int column_tiles = HeadWidth / 16;

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

  __device__ __forceinline__ gather_tiles_view(const gather_tensor_params<T>& params,
                                               unsigned char* memory, int which)
      : pass{params},
        at{Segmented ? params.calls_per_segment : params.num_calls, params.num_rows,
           params.num_heads, params.num_slots, Segmented ? params.positions_per_block : 0},
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
  [[nodiscard]] __device__ __forceinline__ int chunks() const
  {
    return Segmented ? (num_calls() + 15) / 16 : at.chunks;
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
  //! Groups in the ring of factors: more, and smaller ones, where the last segment has fewer chunks.
  //! Never fewer than positions whose factors are made at a time, so that who waits for a group to be
  //! empty is one phase away from it.
  [[nodiscard]] __device__ __forceinline__ int num_groups() const
  {
    return Segmented ? at.num_groups * at.chunks / chunks() : at.num_groups;
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
  //! Of a position's first chunk; the others follow.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t factors(int group) const
  {
    return address(at.factors + group * chunks() * layout::factor_bytes);
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

  //! By one thread.
  __device__ __forceinline__ void init_barriers(int column_warps) const
  {
    const auto begin = [&](const warp_barrier& one, int arrivals) {
      if (Segmented && segment > 0) { one.end(); }
      one.init(arrivals);
    };
    for (int x = 0; x < at.num_slots; ++x) {
      begin(full(x), 32);
      begin(done(x), 32 * column_warps);
      begin(empty(x), 32 / at.batch());
    }
    for (int x = 0; x < layout::max_groups; ++x) {  // a later segment may use more
      begin(factors_full(x), 32 * chunks());
      begin(factors_empty(x), 32 * column_warps);
    }
    for (int x = 0; x < layout::num_exchanges; ++x) {
      if (Segmented && segment > 0) { warp_barrier{exchange(x)}.end(); }
      start_exchange(exchange(x));
    }
  }

  __device__ __forceinline__ void copy_queries(unsigned char* shared, int num_threads) const
  {
    constexpr int vectors = HeadWidth / 8;
    for (int x = threadIdx.x; x < chunks() * 16 * vectors; x += num_threads) {
      const int call = x / vectors;
      const int vector = x % vectors;
      uint4 parts[static_cast<std::size_t>(layout::query_parts)];
#pragma unroll
      for (uint4& part : parts) { part = make_uint4(0, 0, 0, 0); }
      if (call < num_calls()) {
        const int column = head * HeadWidth + vector * 8;
        const int query = pass.first_call + first_call() + call;
#pragma unroll
        for (int part = 0; part < layout::query_parts; ++part) {
          parts[part] = load_parameters(pass.queries.part(part, query) + column);
        }
      }
      unsigned char* const to = shared + call * row_bytes + vector * 16;
#pragma unroll
      for (int part = 0; part < layout::query_parts; ++part) {
        *reinterpret_cast<uint4*>(to + part * at.low_queries) = parts[part];
      }
    }
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
