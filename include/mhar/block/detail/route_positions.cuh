// SPDX-License-Identifier: Apache-2.0
//! The forward of some positions by a cluster of blocks: a warp keeps its columns of all rows of one position in registers, and
//! warps of several positions share what the cache has of the query.
#pragma once

#include <mhar/block/detail/cluster_heads.cuh>
#include <mhar/block/detail/cluster_sums.cuh>
#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/detail/route_finish.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Sum of squares of o over the row, as block_squares, by the warps of one position.
template <class T, int Depth>
class position_squares
{
public:
  using accumulate = accumulate_t<T>;

  __device__ __forceinline__ position_squares(const route_parameters<T>& p,
                                              const cluster_storage<T>& shared)
      : p_{p}, shared_{shared}
  {
  }
  [[nodiscard]] __device__ __forceinline__ accumulate
  operator()(const register_columns<T, Depth>& columns, accumulate scale, bool again) const
  {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    accumulate* const sums = shared_.output_squares + (again ? shared_.spans : 0);
    cluster_mailbox& mailbox = shared_.mailboxes[again ? 2 : 1];
    accumulate of_lane = 0;
#pragma unroll
    for (int i = 0; i < Depth; ++i) {
      const accumulate square =
          columns.valid(i) ? sum_of_squares(columns.mix(i), scale) : accumulate{0};
      of_lane = i == 0 ? square : of_lane + square;
    }
    const int group = Depth > 1 ? 32 : p_.tree.group;
    const accumulate sum = butterfly_sum(of_lane, group);
    if (columns.valid(0)) {
      accumulate* const place = sums + (columns.chunk(0) >> p_.tree.span_shift);
#pragma unroll 1
      for (int block = lane & (group - 1); block < cluster::size(); block += group) {
        mailbox.send(place, block, sum);
      }
    }
    mailbox.wait();
    return sum_spans<1>(sums, 0, p_.tree.num_spans, lane, 32)[0];
  }

private:
  const route_parameters<T>& p_;
  const cluster_storage<T>& shared_;
};

template <class T, int Depth, int Capacity>
class route_positions
{
public:
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;
  using storage = cluster_storage<T>;
  using columns_type = register_columns<T, Depth>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;
  //! A warp's registers.
  static constexpr int max_rows = Depth == 2 ? 9 : 16;
  static constexpr int max_warps = 14;
  static constexpr int rows_ahead = 4;

  //! Of a block that serves `positions` positions with `units` of 32*Depth chunks each.
  [[nodiscard]] static constexpr std::size_t bytes(const thread::width_tree& tree, int sources,
                                                   int units, int positions) noexcept
  {
    return static_cast<std::size_t>(positions) *
           static_cast<std::size_t>(storage::bytes(tree, sources, units, 32 * Depth, 0));
  }

  __device__ __forceinline__ route_positions(const route_parameters<T>& p,
                                             const row_pointers<T, Capacity>& rows, int units,
                                             int positions, char* memory)
      : p_{p},
        rows_{rows},
        has_null_{p.null_source ? 1 : 0},
        num_sources_{p.num_rows + has_null_},
        lane_{static_cast<int>(threadIdx.x) & 31}
  {
    const int warp = warp_of_thread();
    which_ = warp / units;
    unit_ = warp - which_ * units;
    const int first_unit = cluster::rank() * units;
    const int left = (p.tree.num_chunks + 32 * Depth - 1) / (32 * Depth) - first_unit;
    warps_ = left < units ? left : units;
    chunk_ = (cluster::rank() * units + unit_) * Depth * 32 + lane_;
    position_ =
        static_cast<std::int64_t>(blockIdx.x / static_cast<unsigned>(cluster::size())) * positions +
        which_;
    const int size = storage::bytes(p.tree, num_sources_, units, 32 * Depth, 0);
    shared_ = storage::carve(memory + which_ * size, p.tree, num_sources_, units, 32 * Depth, 0);
  }

  __device__ __forceinline__ void operator()()
  {
    if (unit_ == 0 && lane_ == 0) { shared_.open(); }
    cluster::arrive_without_order();
    __syncthreads();
    const bool exists = position_ < p_.num_positions && chunk_ - lane_ < p_.tree.num_chunks;
    cluster_rows_held<T, Depth, max_rows> held{p_};
    if (exists) { held.aim(rows_, position_, chunk_, 0); }
    columns_type columns{p_, chunk_, chunk_ < p_.tree.num_chunks};
    const int first_head = __shfl_sync(full_warp, columns.head(0), 0);
    const int last_head = __reduce_max_sync(full_warp, columns.head(0));

    // Of the block's columns.
    const int first_chunk = chunk_ - lane_ - unit_ * Depth * 32;
    const int end_chunk = first_chunk + warps_ * Depth * 32;
    const int last_chunk = (end_chunk < p_.tree.num_chunks ? end_chunk : p_.tree.num_chunks) - 1;
    const int first_of_block = p_.tree.head_of(first_chunk);
    cluster_logits<T> logits{p_,     shared_,        unit_,
                             warps_, first_of_block, p_.tree.head_of(last_chunk)};
    const cluster_heads<T> heads{p_, shared_, first_of_block, first_head, unit_ * shared_.slots};
    // The usual case is short: what route_finish does for nothing but y.
    const bool only_y = stores_only_y(p_);
    cluster::wait();
    wait_for_dependencies();
    // No barrier follows.
    if (!exists) { return; }
    held.template load_rows<0, rows_ahead>();
    held.load_parameters();
    held.fold();
    if (has_null_ != 0) { sum_null(p_, shared_, chunk_); }
    typename held_type::template sums_of<4> sums{};
    sum_from<0>(held, sums);
    const int rest = held.count() & 3;
    if (rest != 0) { held.template send<4>(shared_, sums, held.count() - rest); }
    logits.load_bias();
    shared_.mailboxes[0].wait();
    const bool stores = cluster::rank() == 0;
    logits.find(position_, stores,
                rows_in_memory<T, row_pointers<T, Capacity>>{p_, rows_, position_, 0});
    numbered_barrier{which_ + 1, 32 * warps_}.sync();
#pragma unroll 1
    for (int h = first_head; h <= last_head; ++h) { heads.find_steps(h); }
    __syncwarp();
    thread::softmax_state<accumulate> state;
    mix(columns, held, state.sum, heads.steps(columns.head(0)), *heads.logits(columns.head(0)));
    if (only_y) { store_y(columns, state.normalizer()); }
    else {
      using squares_type = position_squares<T, Depth>;
      route_finish<T, columns_type, squares_type> finish{p_, columns, squares_type{p_, shared_}};
      finish(position_, own_normalizer<accumulate>{state.normalizer()});
    }
    const bool begins =
        columns.valid(0) && columns.column(0) == columns.head(0) * p_.tree.head_width;
    heads.store(state.sum, position_, begins, columns.head(0), last_head);
  }

private:
  using held_type = cluster_rows_held<T, Depth, max_rows>;

  //! Sums row k while later rows are on their way; four rows' sums are sent together. All loads at once would leave no time to
  //! sum: memory takes them as slowly as it serves them.
  template <int K>
  __device__ __forceinline__ void sum_from(held_type& held,
                                           typename held_type::template sums_of<4>& sums) const
  {
    if constexpr (K < max_rows) {
      if constexpr (K + rows_ahead < max_rows) { held.template load_rows<K + rows_ahead, 1>(); }
      if (K >= held.count()) { return; }
      constexpr int place = K % 4;
      const key_sums<accumulate> of_row = held.sum(K);
      sums[2 * place] = of_row.product;
      sums[2 * place + 1] = of_row.square;
      if constexpr (place == 3) { held.template send<4>(shared_, sums, K - 3); }
      sum_from<K + 1>(held, sums);
    }
  }
  __device__ __forceinline__ void store_y(columns_type& columns, accumulate normalizer) const
  {
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
      if (!columns.valid(place)) { continue; }
      values y = columns.mix(place);
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) { y[c] *= normalizer; }
      columns.store(p_.y, position_, place, y);
    }
  }
  //! Eq. 5.
  __device__ __forceinline__ void mix(columns_type& columns, const held_type& held, accumulate& sum,
                                      const step* steps, accumulate null_logit) const
  {
    values mixes[static_cast<std::size_t>(Depth)] = {};
    if (has_null_ != 0) {
      const step first = steps[0];
      sum = thread::multiply_add(accumulate{0}, first.rescale, first.weight);
#pragma unroll
      for (int place = 0; place < Depth; ++place) {
        if (columns.valid(place) && null_logit != -thread::infinity<accumulate>) {
          mixes[place] = null_row<T>{p_}.load(0, 0, columns.column(place), chunk_width);
        }
      }
    }
    const step* const of_rows = steps + has_null_;
#pragma unroll
    for (int k = 0; k < max_rows; ++k) {
      if (k >= p_.num_rows) { continue; }
      const step next = of_rows[k];
      sum = thread::multiply_add(sum, next.rescale, next.weight);
      // A factor of 1 changes nothing, and it is what most rows after the first few have.
      if (next.rescale != accumulate{1}) {
        // Volatile, so that the branch around it stays one.
        asm volatile("");
#pragma unroll
        for (int place = 0; place < Depth; ++place) {
#pragma unroll
          for (int c = 0; c < chunk_width; ++c) { mixes[place][c] *= next.rescale; }
        }
      }
#pragma unroll
      for (int place = 0; place < Depth; ++place) {
        const values s = held.row(k, place);
#pragma unroll
        for (int c = 0; c < chunk_width; ++c) {
          mixes[place][c] = thread::multiply_add(next.weight, s[c], mixes[place][c]);
        }
      }
    }
#pragma unroll
    for (int place = 0; place < Depth; ++place) { columns.set_mix(place, mixes[place]); }
  }

  const route_parameters<T>& p_;
  const row_pointers<T, Capacity>& rows_;
  int has_null_;
  int num_sources_;
  int lane_;
  int which_;  //!< of the cluster's positions
  int unit_;
  int warps_;  //!< of the position in this block
  int chunk_;
  std::int64_t position_;
  storage shared_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
