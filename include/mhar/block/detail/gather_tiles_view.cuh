// SPDX-License-Identifier: Apache-2.0
//! What the warps of gather_tiles share besides.
#pragma once

#include <mhar/block/detail/gather_view.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/gather_tiles_layout.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

template <class T, int HeadWidth, int MemberTiles, class State, bool Segmented>
struct gather_tiles_view
    : gather_view<T, gather_tiles_layout<T, HeadWidth, MemberTiles, State>, Segmented>
{
  using layout = gather_tiles_layout<T, HeadWidth, MemberTiles, State>;
  static constexpr int row_bytes = layout::row_bytes;
  static constexpr int state_bytes = layout::state_bytes;
  static constexpr int column_tiles = HeadWidth / 16;

  __device__ __forceinline__ gather_tiles_view(const gather_tensor_params<T>& params,
                                               unsigned char* memory, int which)
      : gather_view<T, layout, Segmented>{
            params, memory, which,
            layout{Segmented ? params.calls_per_segment : params.num_calls, params.num_rows,
                   params.num_heads, params.num_slots, Segmented ? params.positions_per_block : 0}}
  {
  }

  [[nodiscard]] __device__ __forceinline__ int chunks() const
  {
    return Segmented ? (this->num_calls() + 15) / 16 : this->at.chunks;
  }
  //! Groups in the ring of factors: more, and smaller ones, where the last segment has fewer chunks.
  //! Never fewer than positions whose factors are made at a time, so that who waits for a group to be
  //! empty is one phase away from it.
  [[nodiscard]] __device__ __forceinline__ int num_groups() const
  {
    return Segmented ? this->at.num_groups * this->at.chunks / chunks() : this->at.num_groups;
  }
  //! Of a position's first chunk; the others follow.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t factors(int group) const
  {
    return this->address(this->at.factors + group * chunks() * layout::factor_bytes);
  }

  //! By one thread.
  __device__ __forceinline__ void init_barriers(int column_warps) const
  {
    for (int x = 0; x < this->at.num_slots; ++x) {
      this->begin(this->full(x), 32);
      this->begin(this->done(x), 32 * column_warps);
      this->begin(this->empty(x), 32 / this->at.batch());
    }
    for (int x = 0; x < layout::max_groups; ++x) {  // a later segment may use more
      this->begin(this->factors_full(x), 32 * chunks());
      this->begin(this->factors_empty(x), 32 * column_warps);
    }
    this->begin_exchanges();
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
      if (call < this->num_calls()) {
        const int column = this->head * HeadWidth + vector * 8;
        const int query = this->pass.first_call + this->first_call() + call;
#pragma unroll
        for (int part = 0; part < layout::query_parts; ++part) {
          parts[part] = load_parameters(this->pass.queries.part(part, query) + column);
        }
      }
      unsigned char* const to = shared + call * row_bytes + vector * 16;
#pragma unroll
      for (int part = 0; part < layout::query_parts; ++part) {
        *reinterpret_cast<uint4*>(to + part * this->at.low_queries) = parts[part];
      }
    }
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
