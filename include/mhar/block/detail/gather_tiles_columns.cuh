// SPDX-License-Identifier: Apache-2.0
//! The warps of gather_tiles that own columns: the rows' gradients and dw there.
#pragma once

#include <mhar/block/detail/gather_tiles_view.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! `Tiles` tiles of 16 columns, for all calls and rows. With 16-bit states the rows' gradients are
//! rounded anyway: their factors and queries need no second part then, but for rows of float16, which
//! are rounded less than bfloat16 parts; dw always has it. Queries of one part stay in registers where
//! dw leaves any (`Resident`). A lane's places in shared memory are found once (`kept_value`): every
//! instruction is waited for.
template <class T, int HeadWidth, int Chunks, int Tiles, int MemberTiles, class State,
          bool Segmented>
class gather_tiles_columns
{
public:
  using view = gather_tiles_view<T, HeadWidth, MemberTiles, State, Segmented>;
  using layout = typename view::layout;

  __device__ __forceinline__ gather_tiles_columns(const view& block, int warp)
      : block_{block},
        column_{kept_value(warp * 16 * Tiles)},
        of_sixteen_{block.lane / 16 * 8 + block.lane % 8},
        offset_{kept_value(warp * 32 * Tiles + block.lane / 8 % 2 * 16)},
        of_rows_{kept_value(block.at.rows +
                            (min)(of_sixteen_, block.pass.num_rows - 1) * view::row_bytes +
                            offset_)},
        of_states_{kept_value(block.at.states + of_sixteen_ % layout::members * view::state_bytes +
                              offset_)},
        of_operands_{kept_value(block.lane % (16 * MemberTiles) * 16)},
        of_pairs_{kept_value(pairs_matrix(block.lane) * 128 + block.lane % 8 * 16)},
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
    const int first = block.finishes() ? 1 : 0;
    has_top_ = kept_value(block.finishes() && block.quad == 0 ? 1 : 0) != 0;
    top_ = kept_value(block.at.top + (column_ + block.row) * 4);
    const int m = block.lane / vectors;
    staged_ = kept_value(block.at.states + m * view::state_bytes + column_ * 2 +
                         block.lane % vectors * 16);
    int kept = 0;
#pragma unroll
    for (int x = 0; x * rows_at_once < layout::members; ++x) {
      const int row = m + x * rows_at_once;
      kept |= row >= first && row < pass.num_rows ? 1 << x : 0;
    }
    kept_rows_ = kept_value(kept);
#pragma unroll
    for (int chunk = 0; chunk < (Chunks <= 4 ? Chunks : 1); ++chunk) {
      const int call = (min)(chunk * 16 + of_sixteen_, block.num_calls() - 1);
      of_gradients_[chunk] = kept_value(call * view::row_bytes + offset_);
    }
  }

  __device__ __forceinline__ void run()
  {
    const int chunks = block_.chunks();
    const int num_groups = block_.num_groups();
    ring_place slot;
    ring_place group;
    fragments now;
    if constexpr (Resident) {
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        if (chunk < chunks) { load_queries(queries_[chunk], chunk); }
      }
    }
#pragma unroll 1
    for (int p = 0; p < block_.count; ++p) {
      load(slot, now);
      const std::uint32_t place = block_.slot(slot.index);
      const int index = slot.index;
      float sums[tiles][member_tiles][4];
      take_states(place, now, sums);
      split_rows(now);
      block_.factors_full(group.index).wait(group.phase);
      const places at{place, block_.factors(group.index)};
      operands next;
      if constexpr (Pipelined) { load_operands(at, 0, next); }
#pragma unroll
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        if (Chunks == 1 || chunk < chunks) {
          const bool more = chunk + 1 < Chunks && chunk + 1 < chunks;
          if constexpr (ExactFactors) { add_exact_chunk(chunk, at, now, sums); }
          else {
            if constexpr (!Pipelined) {
              if (chunk > 0) { load_gradients(now.gradients, place, chunk); }
              load_operands(at, chunk, next);
            }
            if (!more) { block_.factors_empty(group.index).arrive(); }
            add_chunk(chunk, more && Pipelined, at, now, next, sums);
          }
        }
      }
      if constexpr (ExactFactors) { block_.factors_empty(group.index).arrive(); }
      group.advance(num_groups);
      slot.advance(block_.at.num_slots);
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
  //! Queries of up to 128 columns come from shared memory in time, those of wider heads do not.
  static constexpr bool Resident =
      !ExactFactors && !Segmented && (Chunks == 1 || (Chunks <= 4 && HeadWidth > 128));
  //! What the next chunk needs takes the registers of this one's as soon as a product has used them.
  static constexpr bool Pipelined = !ExactFactors && !Resident;
  static constexpr int vectors = 2 * Tiles;  // of a row's columns, 16 bits each
  static constexpr int rows_at_once = 32 / vectors;

  //! What a position starts with: rows, transposed; kept gradients; gradients of a chunk of calls.
  struct fragments
  {
    std::uint32_t rows[tiles][4];
    std::uint32_t rests[has_wide_rest<T> ? tiles : 1][4];  // of rows that are split
    std::uint32_t states[tiles][2 * member_tiles];
    std::uint32_t gradients[tiles][4];
  };

  //! Of a chunk of calls, beside their gradients.
  struct operands
  {
    std::uint32_t queries[Resident ? 1 : tiles][4];
    std::uint32_t weights[2 * member_tiles];
    std::uint32_t factors[2 * member_tiles];
    std::uint32_t pairs[2 * member_tiles];
    std::uint32_t pairs_low[2 * member_tiles];
  };

  //! Of a position: its slot and its group of factors.
  struct places
  {
    std::uint32_t slot;
    std::uint32_t factors;
  };

  //! This lane's matrix: calls come before rows, so that the parts of an operand are neighbours.
  [[nodiscard]] __device__ __forceinline__ static int pairs_matrix(int lane)
  {
    const int matrix = lane / 8 % (2 * MemberTiles);
    return MemberTiles == 2 ? matrix % 2 * 2 + matrix / 2 : matrix;
  }

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
    std::uint32_t from = slot;
    if constexpr (Chunks <= 4) { from += static_cast<std::uint32_t>(of_gradients_[chunk]); }
    else {
      const int call = (min)(chunk * 16 + of_sixteen_, block_.num_calls() - 1);
      from += static_cast<std::uint32_t>(call * view::row_bytes + offset_);
    }
#pragma unroll
    for (int t = 0; t < Tiles; ++t) { load_transposed(to[t], from + t * 32); }
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
    if constexpr (!ExactFactors) { load_gradients(to.gradients, place, 0); }
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

  __device__ __forceinline__ void load_operands(const places& at, int chunk, operands& to) const
  {
    load_transposed(to.weights, operand_at(at, chunk, 0));
    load_matrices(to.pairs, pairs_at(at, chunk, 1));
    if constexpr (!Resident) { load_queries(to.queries, chunk); }
    load_transposed(to.factors, operand_at(at, chunk, 1));
    load_matrices(to.pairs_low, pairs_at(at, chunk, 2));
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t operand_at(const places& at, int chunk,
                                                                    int part) const
  {
    return at.factors + static_cast<std::uint32_t>(of_operands_) + chunk * layout::factor_bytes +
           part * layout::part_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t pairs_at(const places& at, int chunk,
                                                                  int part) const
  {
    return at.factors + static_cast<std::uint32_t>(of_pairs_) + chunk * layout::factor_bytes +
           part * layout::part_bytes;
  }

  //! `more`: what chunk + 1 needs is loaded meanwhile.
  __device__ __forceinline__ void add_chunk(int chunk, bool more, const places& at, fragments& now,
                                            operands& next, float (&sums)[tiles][member_tiles][4])
  {
    add_product<T>(now.gradients, next.weights, sums);
    if (more) {
      load_gradients(now.gradients, at.slot, chunk + 1);
      load_transposed(next.weights, operand_at(at, chunk + 1, 0));
    }
    add_pairs(chunk, now.rows, next.pairs);
    if (more) { load_matrices(next.pairs, pairs_at(at, chunk + 1, 1)); }
    if constexpr (Resident) { add_product<bfloat16>(queries_[chunk], next.factors, sums); }
    else {
      add_product<bfloat16>(next.queries, next.factors, sums);
      if (more) { load_queries(next.queries, chunk + 1); }
    }
    if (more) { load_transposed(next.factors, operand_at(at, chunk + 1, 1)); }
    add_pairs(chunk, now.rows, next.pairs_low);
    if (more) { load_matrices(next.pairs_low, pairs_at(at, chunk + 1, 2)); }
  }

  template <class Operand>
  __device__ __forceinline__ static void add_product(const std::uint32_t (&a)[tiles][4],
                                                     const std::uint32_t (&b)[2 * member_tiles],
                                                     float (&sums)[tiles][member_tiles][4])
  {
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int m = 0; m < MemberTiles; ++m) {
        multiply_add_16<Operand>(sums[t][m], a[t], b[2 * m], b[2 * m + 1]);
      }
    }
  }

  //! Low parts of factors count in rows' gradients, too.
  __device__ __forceinline__ void add_exact_chunk(int chunk, const places& at, fragments& now,
                                                  float (&sums)[tiles][member_tiles][4])
  {
    std::uint32_t queries[tiles][4];
    std::uint32_t weights[2 * member_tiles];
    std::uint32_t weights_low[2 * member_tiles];
    std::uint32_t factors[2 * member_tiles];
    std::uint32_t factors_low[2 * member_tiles];
    std::uint32_t pairs[2 * member_tiles];
    std::uint32_t pairs_low[2 * member_tiles];
    load_gradients(now.gradients, at.slot, chunk);
    load_queries(queries, chunk);
    load_transposed(weights, operand_at(at, chunk, 0));
    load_transposed(factors, operand_at(at, chunk, 1));
    load_matrices(pairs, pairs_at(at, chunk, 1));
    load_matrices(pairs_low, pairs_at(at, chunk, 2));
    load_transposed(factors_low, operand_at(at, chunk, 2));
    if constexpr (Exact) { load_transposed(weights_low, operand_at(at, chunk, 3)); }
    add_product<T>(now.gradients, weights, sums);
    add_pairs(chunk, now.rows, pairs);
    if constexpr (has_wide_rest<T>) { add_pairs(chunk, now.rests, pairs); }
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
#pragma unroll
      for (int m = 0; m < MemberTiles; ++m) {
        multiply_add_16<bfloat16>(sums[t][m], queries[t], factors[2 * m], factors[2 * m + 1]);
        multiply_add_16<bfloat16>(sums[t][m], queries[t], factors_low[2 * m],
                                  factors_low[2 * m + 1]);
        if constexpr (Exact) {
          multiply_add_16<T>(sums[t][m], now.gradients[t], weights_low[2 * m],
                             weights_low[2 * m + 1]);
        }
      }
    }
    add_pairs(chunk, now.rows, pairs_low);
    load_queries(queries, chunk, 1);
    add_product<bfloat16>(queries, factors, sums);
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

  __device__ __forceinline__ void finish(std::uint32_t slot,
                                         const float (&sums)[tiles][member_tiles][4]);
  __device__ __forceinline__ void store_query_sums() const;
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
  int of_operands_;  // in a group of factors
  int of_pairs_;
  int of_gradients_[static_cast<std::size_t>(Chunks <= 4 ? Chunks : 1)];
  bool has_top_;               // this lane holds columns of the row to finish
  int top_;                    // its place in a slot
  int staged_;                 // of a row's vector on its way to memory
  int kept_rows_;              // a bit for each of this lane's rows that is kept
  State* next_top_ = nullptr;  // of the finished row, when calls come in segments
  State* next_state_;  // of the position that comes next; of this lane's row, when 16 bits wide
  std::uint32_t queries_[static_cast<std::size_t>(Resident ? Chunks : 1)][tiles][4];
  float query_sums_[static_cast<std::size_t>(Chunks)][tiles][2][4];
};

}  // namespace block::detail
MHAR_NAMESPACE_END

#include <mhar/block/detail/gather_tiles_results.cuh>
