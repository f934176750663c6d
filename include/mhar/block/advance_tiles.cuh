// SPDX-License-Identifier: Apache-2.0
//! A forward pass over many rows: rows stream through shared memory in tiles of 16 or 8, logits and
//! mixes are products on tensor cores.
#pragma once

#include <mhar/block/advance_tiles_layout.cuh>
#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/operand_scales.cuh>
#include <mhar/block/detail/swizzled_tile.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/block/detail/tile_copy.cuh>
#include <mhar/block/detail/warp_barrier.cuh>
#include <mhar/block/sweep_tensor_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Up to 8*Halves calls and a range of positions, all heads. A unit of work is one head of a
//! position; warps take units in turn and keep its mixes in registers. Kept states, then rows, come
//! eight lines at a time through a ring of slots that is the warp's own, so no warp waits for another
//! but for the queries and for the inverse rms of a new row, once. A tile of rows is two slots, or
//! one where no more than eight rows are left.
//!
//! Eight calls are one first operand of the logits: their high parts in rows 0 to 7, the low ones in
//! rows 8 to 15. The logits leave the product in the layout in which the weights are the second
//! operand of the mixes, whose first one is a tile of rows, transposed.
//!
//! Lane 4*i + q has logits of call i (of each half), lines 2q, 2q+1 of every 8; mixes of calls 2q,
//! 2q+1, columns i, i + 8 of every 16.
//!
//! `Ends` where more follows the first call's mix: the heads of a position leave theirs in a place
//! in shared memory, and the warp that comes last ends the position. Places are few: a warp waits for
//! the position that had its place before, whose units are all earlier than its own.
//!
//! Barriers     one
//! Shared       advance_tiles_layout
//! Numerics     rows in tiles, softmax online; a call's bits do not depend on the others
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
class advance_tiles
{
public:
  using layout = advance_tiles_layout<T, HeadWidth>;
  using tile = detail::swizzled_tile<HeadWidth>;
  static constexpr int max_calls = 8 * Halves;

  __device__ __forceinline__ advance_tiles(const advance_tensor_params<T>& pass,
                                           unsigned char* shared)
      : pass_{pass},
        first_call_{static_cast<int>(blockIdx.y) * max_calls},
        num_calls_{(min)(pass.num_calls - first_call_, max_calls)},
        at_{static_cast<int>(blockDim.x / 32), Slots,
            (min)(pass.num_calls, max_calls),  pass.num_heads,
            pass.positions_per_block,          Ends},
        shared_{shared},
        lane_{static_cast<int>(threadIdx.x % 32)},
        row_{lane_ / 4},
        quad_{lane_ % 4},
        first_{std::int64_t{blockIdx.x} * pass.positions_per_block},
        slots_{shared + static_cast<int>(threadIdx.x / 32) * Slots * layout::slot_bytes}
  {
    const std::int64_t rest = pass.num_positions - first_;
    count_ = static_cast<int>(rest < pass.positions_per_block ? rest : pass.positions_per_block);
    find_first();
  }

  //! Reads parameters, and asks for the new row to be brought into the L2 cache: before the kernels
  //! in front have ended. Vector v of call j lies at vector v ^ 4*(j % 2): the same vectors of two
  //! calls are in different banks.
  __device__ __forceinline__ void prepare()
  {
    const int vectors = pass_.num_heads * steps * 4;
    for (int j = threadIdx.x / 32; j < num_calls_; j += blockDim.x / 32) {
      const auto* const image =
          reinterpret_cast<const uint4*>(pass_.queries.image(pass_.first_call + first_call_ + j));
      const std::uint32_t to = detail::shared_address(shared_) + at_.queries + j * vectors * 16;
      for (int v = lane_; v < vectors; v += 32) {
        detail::copy_async(to + (v ^ j % 2 * 4) * 16, image + v);
      }
    }
    detail::end_copy_group();
    if (pass_.has_new_row) {
      if (threadIdx.x == 0) { found().init(32); }
#pragma unroll 1
      for (int slot = 0; slot < Slots; ++slot) { copy_next<share::early>(slot); }
    }
    if (pass_.has_new_row) { prefetch_new_row(); }
  }

  __device__ __forceinline__ void run()
  {
    if (pass_.has_new_row) {
      find_first();
#pragma unroll 1
      for (int slot = 0; slot < Slots; ++slot) { copy_next<share::rest>(slot); }
    }
    else {
#pragma unroll 1
      for (int slot = 0; slot < Slots; ++slot) { copy_next(slot); }
    }
    if (pass_.has_new_row) { sum_new_squares(); }
    if (has_ending()) {
      if (threadIdx.x < 2 * at_.num_places) { counters()[threadIdx.x] = 0; }
      if (threadIdx.x == 0) { *ending() = pass_.ending; }
    }
    detail::wait_for_copy_groups<Slots>();
    __syncthreads();
    if (pass_.has_new_row && threadIdx.x < 32) { find_new_inverse_rms(); }
    int slot = 0;
    unit at;
    at.start(threadIdx.x / 32, pass_.num_heads);
#pragma unroll 1
    for (; at.position < count_; at.step(blockDim.x / 32, pass_.num_heads)) {
      start(at, slot);
      int rest = pass_.num_rows;
#pragma unroll 1
      for (; rest > 8; rest -= 16) {
        detail::wait_for_copy_groups<Slots - 2>();
        const int other = after(slot);
        set_new_inverse_rms(at, rest <= 16 ? other : -1);
        __syncwarp();
        add_tile<2>(at.head, slot, rest);
        __syncwarp();
        copy_next(slot);
        if (rest <= 16) { finish(at, other); }
        copy_next(other);
        slot = after(other);
      }
      if (rest > 0) {
        detail::wait_for_copy_groups<Slots - 1>();
        set_new_inverse_rms(at, slot);
        __syncwarp();
        add_tile<1>(at.head, slot, rest);
        __syncwarp();
        finish(at, slot);
        copy_next(slot);
        slot = after(slot);
      }
    }
  }

private:
  static constexpr int steps = HeadWidth / 16;

  //! A head of a position, both counted within the block.
  struct unit
  {
    int position;
    int head;

    __device__ __forceinline__ void start(int index, int num_heads)
    {
      if constexpr (Ends) {
        position = index / num_heads;
        head = index % num_heads;
      }
      else {  // faster, but with endings more is spilled
        position = head = 0;
        step(index, num_heads);
      }
    }
    __device__ __forceinline__ void step(int count, int num_heads)
    {
      head += count;
      while (head >= num_heads) {
        head -= num_heads;
        ++position;
      }
    }
  };

  [[nodiscard]] __device__ __forceinline__ bool states_in_tiles() const
  {
    return sizeof(State) == 2 && pass_.kept;
  }
  //! Of a unit, counted in lines: states lie before line 0, a slot for every eight calls.
  [[nodiscard]] __device__ __forceinline__ int first_line() const
  {
    return states_in_tiles() ? -8 * Halves : 0;
  }
  [[nodiscard]] __device__ __forceinline__ static int after(int slot)
  {
    return slot + 1 == Slots ? 0 : slot + 1;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t address(int slot) const
  {
    return detail::shared_address(slots_) + slot * layout::slot_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ float* scalars(int slot) const
  {
    return reinterpret_cast<float*>(slots_ + slot * layout::slot_bytes + layout::lines_bytes);
  }
  [[nodiscard]] __device__ __forceinline__ float* new_inverse_rms() const
  {
    return reinterpret_cast<float*>(shared_ + at_.inverse_rms);
  }
  //! Opens when the new row's inverse rms are known.
  [[nodiscard]] __device__ __forceinline__ detail::warp_barrier found() const
  {
    return {detail::shared_address(shared_) + at_.found};
  }
  [[nodiscard]] __device__ __forceinline__ bool has_ending() const
  {
    return Ends && first_call_ == 0;
  }
  [[nodiscard]] __device__ __forceinline__ detail::call_ending<T>* ending() const
  {
    return reinterpret_cast<detail::call_ending<T>*>(shared_ + at_.ending);
  }
  //! Of each place: heads that have left their mix, and 1 + the last position that was ended there. A warp may be several turns
  //! of a place behind another, which a barrier's two phases do not tell apart.
  [[nodiscard]] __device__ __forceinline__ volatile int* counters() const
  {
    return reinterpret_cast<volatile int*>(shared_ + at_.counters);
  }
  //! The first call's mix of a position, [d], and its lse, [H].
  [[nodiscard]] __device__ __forceinline__ float* place_of(int position) const
  {
    return reinterpret_cast<float*>(shared_ + at_.mixes) +
           position % at_.num_places * pass_.num_heads * HeadWidth;
  }
  [[nodiscard]] __device__ __forceinline__ float* place_lse_of(int position) const
  {
    return reinterpret_cast<float*>(shared_ + at_.lse) +
           position % at_.num_places * pass_.num_heads;
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t head_index(int call, const unit& at) const
  {
    return ((first_call_ + call) * pass_.num_positions + first_ + at.position) * pass_.num_heads +
           at.head;
  }
  [[nodiscard]] __device__ __forceinline__ State* state_of(int call, const unit& at) const
  {
    return static_cast<State*>(pass_.states) + (first_call_ + call) * pass_.slot_stride +
           (first_ + at.position) * pass_.width + at.head * HeadWidth;
  }
  [[nodiscard]] __device__ __forceinline__ State* mix_of(const unit& at) const
  {
    return static_cast<State*>(pass_.mix) + (first_ + at.position) * pass_.mix_stride +
           at.head * HeadWidth;
  }
  [[nodiscard]] __device__ __forceinline__ bool is_finished(int call) const
  {
    return pass_.finishes && first_call_ + call == 0;
  }
  //! Call `half`*8 + i has a number for each i, which lanes 4*i hold: those of calls 2q, 2q+1.
  [[nodiscard]] __device__ __forceinline__ float2 to_columns(float of_call) const
  {
    return make_float2(__shfl_sync(0xffffffffu, of_call, quad_ * 8),
                       __shfl_sync(0xffffffffu, of_call, quad_ * 8 + 4));
  }

  //! Points at the rows of the unit to be copied: this lane's vectors of line i, and its line's
  //! inverse rms.
  __device__ __forceinline__ void find_rows()
  {
    const std::int64_t position = first_ + next_.position;
    row_ahead_ = pass_.rows + row_ * pass_.row_stride + position * pass_.position_stride +
                 next_.head * HeadWidth + quad_ * 8;
    inverse_ahead_ = pass_.inverse_rms + lane_ * pass_.num_positions + position;
  }

  //! The first lines to be copied are this warp's first.
  __device__ __forceinline__ void find_first()
  {
    next_.start(threadIdx.x / 32, pass_.num_heads);
    next_line_ = first_line();
    find_rows();
  }

  //! Of the states from `call` on, of the unit to be copied.
  __device__ __forceinline__ void copy_lse(int slot, int call) const
  {
    if (lane_ < (min)(num_calls_ - call, 8)) {
      detail::copy_async_4(scalars(slot) + lane_,
                           pass_.state_lse + head_index(call + lane_, next_));
    }
  }

  //! What can be copied before the kernels in front have ended, beside a new row: everything but that
  //! row and the lines' numbers.
  enum class share
  {
    all,
    early,
    rest
  };

  //! A lane's vectors of a line. Lines that do not exist become zero: they have no weight, and zero
  //! times anything else would not do.
  __device__ __forceinline__ void copy_lines(int slot, const T* from, bool exists) const
  {
    const std::uint32_t target = address(slot);
#pragma unroll
    for (int u = 0; u < tile::groups; ++u) {
      detail::copy_async_or_zero(target + vector_offset(u), from + u * 32, exists);
    }
  }
  //! Of vector 4u + q of line i.
  [[nodiscard]] __device__ __forceinline__ int vector_offset(int u) const
  {
    constexpr int per_period = tile::period / 4;
    return tile::offset(row_, u % per_period * 4 + quad_) + u / per_period * tile::period * 16;
  }
  //! Of vector 2j + (lane_ / 8 % 2) of line lane_ % 8: how lanes 0 to 15 address two 8 x 8 matrices
  //! of 16 columns, and lanes 16 to 31 those of another slot.
  [[nodiscard]] __device__ __forceinline__ int pair_offset(int j) const
  {
    constexpr int per_period = tile::period / 2;
    return tile::offset(lane_ % 8, j % per_period * 2 + lane_ / 8 % 2) +
           j / per_period * tile::period * 16;
  }
  //! Of vector 4u + (lane_ / 8) of line lane_ % 8: the same for 32 columns of one slot.
  [[nodiscard]] __device__ __forceinline__ int matrix_offset(int u) const
  {
    constexpr int per_period = tile::period / 4;
    return tile::offset(lane_ % 8, u % per_period * 4 + lane_ / 8) +
           u / per_period * tile::period * 16;
  }
  //! The copies left the place of the new row, the last one of a unit, empty; `slot` holds that row
  //! where it is not negative.
  __device__ __forceinline__ void set_new_inverse_rms(const unit& at, int slot) const
  {
    if (slot >= 0 && pass_.has_new_row && lane_ == 0) {
      found().wait(0);
      scalars(slot)[(pass_.num_rows - 1) % 8] = new_inverse_rms()[at.position];
    }
  }

  template <share Share = share::all>
  __device__ __forceinline__ void copy_next(int slot);
  __device__ __forceinline__ void prefetch_new_row() const;
  __device__ __forceinline__ void sum_new_squares();
  __device__ __forceinline__ void find_new_inverse_rms();
  __device__ __forceinline__ void start(const unit& at, int& slot);
  __device__ __forceinline__ void start_from_null(const unit& at);
  template <int Parts>
  __device__ __forceinline__ void add_tile(int head, int slot, int count);
  template <int Parts>
  __device__ __forceinline__ void weigh(int half,
                                        const float (&inverse)[static_cast<std::size_t>(Parts)][2],
                                        const float (&bias)[static_cast<std::size_t>(Parts)][2],
                                        float (&logits)[static_cast<std::size_t>(Parts)][4]);
  __device__ __forceinline__ void change_reference(int half, float largest, float max_excess);
  __device__ __forceinline__ void finish(const unit& at, int slot);
  __device__ __forceinline__ void wait_for_place(int position) const;
  __device__ __forceinline__ void end_position(int position, int slot);

  const advance_tensor_params<T>& pass_;
  int first_call_;  // of this block
  int num_calls_;
  layout at_;
  unsigned char* shared_;
  int lane_;
  int row_;             // i
  int quad_;            // q
  std::int64_t first_;  // position of this block
  int count_;           // of its positions
  unsigned char* slots_;
  unit next_;      // to be copied
  int next_line_;  // below 0: the states
  const T* row_ahead_;
  const float* inverse_ahead_;
  float mixes_[static_cast<std::size_t>(Halves)][static_cast<std::size_t>(steps)][4];
  float reference_[static_cast<std::size_t>(Halves)];  // weights are exp2(logit - reference)
  float sum_[static_cast<std::size_t>(Halves)];        // of this lane's lines
};

}  // namespace block
MHAR_NAMESPACE_END

#include <mhar/block/detail/advance_tiles_copies.cuh>
#include <mhar/block/detail/advance_tiles_ending.cuh>
#include <mhar/block/detail/advance_tiles_new_row.cuh>
#include <mhar/block/detail/advance_tiles_null.cuh>
#include <mhar/block/detail/advance_tiles_products.cuh>
