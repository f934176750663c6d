// SPDX-License-Identifier: Apache-2.0
//! The warps of gather_tiles that own columns: the rows' gradients and dw there.
#pragma once

#include <mhar/block/detail/gather_tiles_view.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! `Tiles` tiles of 16 columns, for all calls and rows. With 16-bit states the rows' gradients are
//! rounded anyway: their factors and queries need no second part then, but for rows of float16, which
//! are rounded less than bfloat16 parts; dw always has it. Queries of one part stay in registers where
//! dw leaves any (`Resident`), and of few calls what the next position starts with is loaded before
//! this one ends (`Ahead`).
template <class T, int HeadWidth, int Chunks, int Tiles, int MemberTiles, class State,
          bool Segmented>
class gather_tiles_columns
{
public:
  using view = gather_tiles_view<T, HeadWidth, MemberTiles, State, Segmented>;
  using layout = typename view::layout;

  __device__ __forceinline__ gather_tiles_columns(const view& block, int warp)
      : block_{block},
        column_{warp * 16 * Tiles},
        of_sixteen_{block.lane / 16 * 8 + block.lane % 8},
        offset_{warp * 32 * Tiles + block.lane / 8 % 2 * 16},
        of_rows_{block.at.rows + (min)(of_sixteen_, block.pass.num_rows - 1) * view::row_bytes +
                 offset_},
        of_states_{block.at.states + of_sixteen_ % layout::members * view::state_bytes + offset_},
        query_sums_{}
  {
    const gather_tensor_params<T>& pass = block.pass;
    next_state_ = static_cast<State*>(pass.states) + block.first * pass.width +
                  block.head * HeadWidth + column_;
    if constexpr (sizeof(State) == 2) {
      next_state_ += block.lane / vectors * pass.slot_stride + block.lane % vectors * 8;
      next_top_ = pass.row_gradient + block.first * pass.gradient_stride + block.head * HeadWidth +
                  column_ + block.lane % vectors * 8;
    }
  }

  __device__ __forceinline__ void run()
  {
    const int chunks = block_.chunks();
    ring_place slot;
    ring_place factors;
    fragments now;
    if constexpr (Resident) {
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        if (chunk < chunks) { load_queries(queries_[chunk], chunk); }
      }
    }
    if constexpr (Ahead) { load(slot, now); }
#pragma unroll 1
    for (int p = 0; p < block_.count; ++p) {
      if constexpr (!Ahead) { load(slot, now); }
      const std::uint32_t place = block_.slot(slot.index);
      const int index = slot.index;
      float sums[tiles][member_tiles][4];
      take_states(place, now, sums);
      split_rows(now);
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        if (Chunks == 1 || chunk < chunks) {
          add_chunk(chunk, place, factors, now, sums);
          factors.advance(layout::num_factors);
        }
      }
      slot.advance(block_.at.num_slots);
      if (Ahead && p + 1 < block_.count) { load(slot, now); }
      finish(place, sums);
      block_.done(index).arrive();
    }
    store_query_sums();
  }

private:
  static constexpr auto tiles = static_cast<std::size_t>(Tiles);
  static constexpr auto member_tiles = static_cast<std::size_t>(MemberTiles);
  static constexpr float scale = operand_scales<T>::weight;  // of all sums
  static constexpr bool Exact = sizeof(State) == 4;
  static constexpr bool ExactFactors = Exact || has_wide_rest<T>;
  static constexpr bool Resident = Chunks <= 4 && !ExactFactors && !Segmented;
  static constexpr bool Ahead = Chunks == 1;
  static constexpr int vectors = 2 * Tiles;  // of a row's columns, 16 bits each

  //! What a position starts with: rows, transposed; kept gradients; gradients of a chunk of calls.
  struct fragments
  {
    std::uint32_t rows[tiles][4];
    std::uint32_t rests[has_wide_rest<T> ? tiles : 1][4];  // of rows that are split
    std::uint32_t states[tiles][2 * member_tiles];
    std::uint32_t gradients[tiles][4];
  };

  __device__ __forceinline__ void load_queries(std::uint32_t (&to)[tiles][4], int chunk,
                                               int part = 0) const
  {
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      load_transposed(
          to[t], block_.address(block_.at.column_queries(part) +
                                (chunk * 16 + of_sixteen_) * view::row_bytes + offset_ + t * 32));
    }
  }

  __device__ __forceinline__ void load_gradients(std::uint32_t (&to)[tiles][4], std::uint32_t slot,
                                                 int chunk) const
  {
    const int call = (min)(chunk * 16 + of_sixteen_, block_.num_calls() - 1);
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      load_transposed(to[t],
                      slot + static_cast<std::uint32_t>(call * view::row_bytes + offset_ + t * 32));
    }
  }

  __device__ __forceinline__ void load(const ring_place& slot, fragments& to) const
  {
    block_.full(slot.index).wait(slot.phase);
    const std::uint32_t place = block_.slot(slot.index);
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      load_transposed(to.rows[t], place + static_cast<std::uint32_t>(of_rows_ + t * 32));
      if constexpr (!Exact) {
        if (block_.kept()) {
          load_transposed(to.states[t], place + static_cast<std::uint32_t>(of_states_ + t * 32));
        }
      }
    }
    if constexpr (Ahead) { load_gradients(to.gradients, place, 0); }
  }

  __device__ __forceinline__ static void split_rows(fragments& now)
  {
    if constexpr (has_wide_rest<T>) {
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const std::uint32_t pair = now.rows[t][x];
          now.rows[t][x] = make_wide_pair<T>(pair);
          now.rests[t][x] = make_wide_rest(pair, now.rows[t][x]);
        }
      }
    }
  }

  //! Kept gradients, or zero.
  __device__ __forceinline__ void take_states(std::uint32_t slot, const fragments& from,
                                              float (&sums)[tiles][member_tiles][4]) const
  {
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int m = 0; m < MemberTiles; ++m) {
        sums[t][m][0] = sums[t][m][1] = sums[t][m][2] = sums[t][m][3] = 0;
      }
    }
    if (!block_.kept()) { return; }
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      if constexpr (!Exact) {
#pragma unroll
        for (int x = 0; x < 2 * MemberTiles; ++x) {
          sums[t][x / 2][x % 2 * 2] = scale * first_of<T>(from.states[t][x]);
          sums[t][x / 2][x % 2 * 2 + 1] = scale * second_of<T>(from.states[t][x]);
        }
      }
      else {
#pragma unroll
        for (int x = 0; x < 4 * MemberTiles; ++x) {
          const int m = (min)(x / 4 * 8 + block_.quad * 2 + x % 2, block_.pass.num_rows - 1);
          const int column = column_ + t * 16 + x % 4 / 2 * 8 + block_.row;
          sums[t][x / 4][x % 4] =
              scale * load_float(slot + static_cast<std::uint32_t>(
                                            block_.at.states + m * view::state_bytes + column * 4));
        }
      }
    }
  }

  __device__ __forceinline__ void add_chunk(int chunk, std::uint32_t slot, const ring_place& place,
                                            fragments& now, float (&sums)[tiles][member_tiles][4])
  {
    if constexpr (!Ahead) { load_gradients(now.gradients, slot, chunk); }
    const auto& a = now.gradients;
    std::uint32_t loaded[tiles][4];
    if constexpr (!Resident) { load_queries(loaded, chunk); }
    const auto& queries = Resident ? queries_[Resident ? chunk : 0] : loaded;
    block_.factors_full(place.index).wait(place.phase);
    const std::uint32_t from = block_.factors(place.index) +
                               static_cast<std::uint32_t>(block_.lane % (16 * MemberTiles) * 16);
    // Calls come before rows here, so that the parts of an operand are neighbours.
    const int matrix = block_.lane / 8 % (2 * MemberTiles);
    const std::uint32_t of_pairs =
        block_.factors(place.index) +
        static_cast<std::uint32_t>((MemberTiles == 2 ? matrix % 2 * 2 + matrix / 2 : matrix) * 128 +
                                   block_.lane % 8 * 16);
    std::uint32_t weights[2 * member_tiles];
    std::uint32_t weights_low[2 * member_tiles];
    std::uint32_t factors[2 * member_tiles];
    std::uint32_t factors_low[2 * member_tiles];
    std::uint32_t pairs[2 * member_tiles];
    std::uint32_t pairs_low[2 * member_tiles];
    load_transposed(weights, from);
    load_transposed(factors, from + layout::part_bytes);
    load_matrices(pairs, of_pairs + layout::part_bytes);
    load_matrices(pairs_low, of_pairs + 2 * layout::part_bytes);
    if constexpr (ExactFactors) { load_transposed(factors_low, from + 2 * layout::part_bytes); }
    if constexpr (Exact) { load_transposed(weights_low, from + 3 * layout::part_bytes); }
    block_.factors_empty(place.index).arrive();
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int m = 0; m < MemberTiles; ++m) {
        multiply_add_16<T>(sums[t][m], a[t], weights[2 * m], weights[2 * m + 1]);
      }
    }
    add_pairs(chunk, now.rows, pairs);
    if constexpr (has_wide_rest<T>) { add_pairs(chunk, now.rests, pairs); }
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int m = 0; m < MemberTiles; ++m) {
        multiply_add_16<bfloat16>(sums[t][m], queries[t], factors[2 * m], factors[2 * m + 1]);
        if constexpr (ExactFactors) {
          multiply_add_16<bfloat16>(sums[t][m], queries[t], factors_low[2 * m],
                                    factors_low[2 * m + 1]);
        }
        if constexpr (Exact) {
          multiply_add_16<T>(sums[t][m], a[t], weights_low[2 * m], weights_low[2 * m + 1]);
        }
      }
    }
    add_pairs(chunk, now.rows, pairs_low);
    if constexpr (ExactFactors) {
      load_queries(loaded, chunk, 1);
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
#pragma unroll
        for (int m = 0; m < MemberTiles; ++m) {
          multiply_add_16<bfloat16>(sums[t][m], loaded[t], factors[2 * m], factors[2 * m + 1]);
        }
      }
    }
  }

  //! dw of a chunk: the sum is over rows.
  __device__ __forceinline__ void add_pairs(int chunk, const std::uint32_t (&rows)[tiles][4],
                                            const std::uint32_t (&pairs)[2 * member_tiles])
  {
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        float(&sum)[4] = query_sums_[chunk][t][x];
        if constexpr (MemberTiles == 2) {
          multiply_add_16<bfloat16>(sum, rows[t], pairs[2 * x], pairs[2 * x + 1]);
        }
        else {
          multiply_add_8<bfloat16>(sum, rows[t][0], rows[t][1], pairs[x]);
        }
      }
    }
  }

  //! Stores gradients to keep; the finished row is left to the warp that ends it.
  __device__ __forceinline__ void finish(std::uint32_t slot,
                                         const float (&sums)[tiles][member_tiles][4])
  {
    const gather_tensor_params<T>& pass = block_.pass;
    if (block_.finishes() && block_.quad == 0) {
      const std::uint32_t top =
          slot + static_cast<std::uint32_t>(block_.at.top + (column_ + block_.row) * 4);
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
        store_float(top + t * 64, sums[t][0][0] * (1 / scale));
        store_float(top + t * 64 + 32, sums[t][0][2] * (1 / scale));
      }
    }
    const int first = block_.finishes() ? 1 : 0;
    if (first < pass.num_rows) {
      if constexpr (!Exact) {
#pragma unroll
        for (int t = 0; t < Tiles; ++t) {
          std::uint32_t values[2 * member_tiles];
#pragma unroll
          for (int x = 0; x < 2 * MemberTiles; ++x) {
            const float* const sum = &sums[t][x / 2][x % 2 * 2];
            values[x] = make_pair<T>(sum[0] * (1 / scale), sum[1] * (1 / scale));
          }
          store_matrices_transposed(slot + static_cast<std::uint32_t>(of_states_ + t * 32), values);
        }
        __syncwarp();
        constexpr int rows = 32 / vectors;  // at a time
        const int m = block_.lane / vectors;
        const std::uint32_t from =
            slot + static_cast<std::uint32_t>(block_.at.states + m * view::state_bytes +
                                              column_ * 2 + block_.lane % vectors * 16);
#pragma unroll
        for (int x = 0; x * rows < layout::members; ++x) {
          if (m + x * rows >= first && m + x * rows < pass.num_rows) {
            State* to = next_state_ + x * rows * pass.slot_stride;
            if (Segmented && x == 0 && m == 0 && pass.finishes) {
              if (pass.row_gradient == nullptr) { continue; }
              to = next_top_;
            }
            store_16_bytes(to, load_16_bytes(from + x * rows * view::state_bytes));
          }
        }
      }
      else {
#pragma unroll
        for (int x = 0; x < 4 * MemberTiles; ++x) {
          const int m = x / 4 * 8 + block_.quad * 2 + x % 2;
          if (m >= first && m < pass.num_rows) {
#pragma unroll
            for (int t = 0; t < Tiles; ++t) {
              next_state_[m * pass.slot_stride + t * 16 + x % 4 / 2 * 8 + block_.row] =
                  sums[t][x / 4][x % 4] * (1 / scale);
            }
          }
        }
      }
    }
    next_state_ += pass.width;
    next_top_ += pass.gradient_stride;
  }

  //! Adds this block's share of dw to chunk blockIdx.y. All that is there is asked for before the
  //! first sum is stored, some chunks of calls at a time.
  __device__ __forceinline__ void store_query_sums() const
  {
    const gather_tensor_params<T>& pass = block_.pass;
    if (pass.query_sums == nullptr) { return; }
    constexpr int at_once = Chunks % 2 == 0 ? 2 : 1;
    constexpr int of_chunk = 8 * Tiles;
    float* const to = pass.query_sums + block_.first_call() * pass.width +
                      blockIdx.y * pass.chunk_stride + block_.head * HeadWidth + column_ +
                      block_.row;
#pragma unroll
    for (int first = 0; first < Chunks; first += at_once) {
      float old[at_once * of_chunk];
#pragma unroll
      for (int x = 0; x < at_once * of_chunk; ++x) {
        const int call = call_of(first, x);
        old[x] = call < block_.num_calls() ? __ldcg(to + place_of(call, x % of_chunk)) : 0.0f;
      }
#pragma unroll
      for (int x = 0; x < at_once * of_chunk; ++x) {
        const int call = call_of(first, x);
        const int y = x % of_chunk;
        if (call < block_.num_calls()) {
          to[place_of(call, y)] =
              old[x] + query_sums_[first + x / of_chunk][y / 8][y / 4 % 2][y % 4] * (1 / scale);
        }
      }
    }
  }
  [[nodiscard]] __device__ __forceinline__ int call_of(int first, int x) const
  {
    const int y = x % (8 * Tiles);
    return (first + x / (8 * Tiles)) * 16 + y / 4 % 2 * 8 + block_.quad * 2 + y % 2;
  }
  [[nodiscard]] __device__ __forceinline__ int place_of(int call, int y) const
  {
    return call * static_cast<int>(block_.pass.width) + y / 8 * 16 + y % 4 / 2 * 8;
  }

  const view& block_;
  int column_;      // the first
  int of_sixteen_;  // the row of 16 that this lane gives the address of, transposed
  int offset_;      // of its 16 bytes
  int of_rows_;     // places in a slot
  int of_states_;
  State* next_top_ = nullptr;  // of the finished row, when calls come in segments
  State* next_state_;  // of the position that comes next; of this lane's row, when 16 bits wide
  std::uint32_t queries_[static_cast<std::size_t>(Resident ? Chunks : 1)][tiles][4];
  float query_sums_[static_cast<std::size_t>(Chunks)][tiles][2][4];
};

}  // namespace block::detail
MHAR_NAMESPACE_END
