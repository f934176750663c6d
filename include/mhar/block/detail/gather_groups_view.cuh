// SPDX-License-Identifier: Apache-2.0
//! What the warps of gather_groups share besides.
#pragma once

#include <mhar/block/detail/gather_view.cuh>
#include <mhar/block/gather_groups_layout.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

template <class T, int HeadWidth, int Chunks, bool Segmented>
struct gather_groups_view : gather_view<T, gather_groups_layout<T, HeadWidth, Chunks>, Segmented>
{
  using layout = gather_groups_layout<T, HeadWidth, Chunks>;

  __device__ __forceinline__ gather_groups_view(const gather_tensor_params<T>& params,
                                                unsigned char* memory, int which)
      : gather_view<T, layout, Segmented>{
            params, memory, which,
            layout{params.num_heads, params.num_slots, Segmented ? params.positions_per_block : 0}}
  {
  }

  //! The last segment may have fewer: then its last ones are of no call.
  [[nodiscard]] __device__ __forceinline__ static constexpr int chunks() { return Chunks; }

  [[nodiscard]] __device__ __forceinline__ std::uint32_t factors(int group) const
  {
    return this->address(layout::factors + group * layout::factor_bytes);
  }

  //! By one thread.
  __device__ __forceinline__ void init_barriers() const
  {
    for (int x = 0; x < this->at.num_slots; ++x) {
      this->begin(this->full(x), 33);  // a copying warp, and who says how many bytes come besides
      this->begin(this->done(x), 128);
      this->begin(this->empty(x), 32 / this->at.batch() + 32);
    }
    for (int x = 0; x < layout::num_groups; ++x) {
      this->begin(this->factors_full(x), 32 * Chunks);
      this->begin(this->factors_empty(x), 128);
    }
    this->begin_exchanges();
  }

  //! The queries' high part; and zeros in the lines of rows that do not exist, which meet factors of 0.
  __device__ __forceinline__ void fill(int num_threads) const
  {
    constexpr int vectors = HeadWidth / 8;
    for (int x = threadIdx.x; x < Chunks * 16 * vectors; x += num_threads) {
      const int call = x / vectors;
      const int vector = x % vectors;
      uint4 part = make_uint4(0, 0, 0, 0);
      if (call < this->num_calls()) {
        part = load_parameters(
            this->pass.queries.part(0, this->pass.first_call + this->first_call() + call) +
            this->head * HeadWidth + vector * 8);
      }
      store_16_bytes(this->address(layout::vector_place(call, vector, layout::call_tile)), part);
    }
    const int lines = layout::members - this->pass.num_rows;
    for (int x = threadIdx.x; x < this->at.num_slots * lines * vectors; x += num_threads) {
      const int line = this->pass.num_rows + x / vectors % lines;
      const int place = layout::vector_place(line, x % vectors, layout::tile_bytes);
      store_16_bytes(
          this->slot(x / vectors / lines) + static_cast<std::uint32_t>(layout::rows + place),
          make_uint4(0, 0, 0, 0));
    }
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
