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
    accumulate* const sums = shared_.output_squares + (again ? shared_.stride : 0);
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
  static constexpr int max_warps = 12;

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
    const int which = warp / units;
    unit_ = warp - which * units;
    chunk_ = (cluster::rank() * units + unit_) * Depth * 32 + lane_;
    position_ =
        static_cast<std::int64_t>(blockIdx.x / static_cast<unsigned>(cluster::size())) * positions +
        which;
    const int size = storage::bytes(p.tree, num_sources_, units, 32 * Depth, 0);
    shared_ = storage::carve(memory + which * size, p.tree, num_sources_, units, 32 * Depth, 0);
  }

  __device__ __forceinline__ void operator()()
  {
    if (unit_ == 0) {
      if (lane_ == 0) { shared_.open(p_.tree, num_sources_); }
      shared_.clear_padding(p_.tree, num_sources_, lane_, 32);
    }
    cluster::arrive_without_order();
    __syncthreads();
    const bool exists = position_ < p_.num_positions && chunk_ - lane_ < p_.tree.num_chunks;
    cluster_rows_held<T, Depth, max_rows> held{p_};
    if (exists) { held.aim(rows_, position_, chunk_, 0); }
    columns_type columns{p_, chunk_, chunk_ < p_.tree.num_chunks};
    const int first_head = __shfl_sync(full_warp, columns.head(0), 0);
    const int last_head = __reduce_max_sync(full_warp, columns.head(0));

    cluster::wait();
    wait_for_dependencies();
    // No barrier follows.
    if (!exists) { return; }
    held.load();
    held.fold();
    if (has_null_ != 0) { sum_null(p_, shared_, chunk_); }
    sum_batches<0>(held);
    cluster_heads<T> heads{p_, shared_, num_sources_};
    heads.load_bias();
    using squares_type = position_squares<T, Depth>;
    route_finish<T, columns_type, squares_type> finish{p_, columns, squares_type{p_, shared_}};
    shared_.mailboxes[0].wait();

    const int first_slot = unit_ * shared_.slots;
    static_cast<void>(heads.find_inverse_rms(position_, chunk_ == lane_, [&] {
      return rows_in_memory<T, row_pointers<T, Capacity>>{p_, rows_, position_, 0};
    }));
    thread::softmax_state<accumulate> state;
#pragma unroll 1
    for (int h = first_head; h <= last_head; ++h) {
      const accumulate maximum = heads.find_steps(h, first_slot + h - first_head);
      state.maximum = h == columns.head(0) ? maximum : state.maximum;
    }
    __syncwarp();
    mix(columns, held, state.sum, (first_slot + columns.head(0) - first_head) * shared_.slot_size);
    finish(position_, own_normalizer<accumulate>{state.normalizer()});
    const bool begins =
        columns.valid(0) && columns.column(0) == columns.head(0) * p_.tree.head_width;
    heads.store(state, position_, begins, columns.head(0), first_head, last_head, first_slot);
  }

private:
  using held_type = cluster_rows_held<T, Depth, max_rows>;

  //! Four rows at a time.
  template <int First>
  __device__ __forceinline__ void sum_batches(const held_type& held) const
  {
    if constexpr (First < max_rows) {
      constexpr int size = max_rows - First < 4 ? max_rows - First : 4;
      if (held.count() > First) {
        if (held.count() == First + 1) { held.template sum_and_send<First, 1>(shared_); }
        else {
          held.template sum_and_send<First, size>(shared_);
        }
        sum_batches<First + size>(held);
      }
    }
  }
  //! Eq. 5.
  __device__ __forceinline__ void mix(columns_type& columns, const held_type& held, accumulate& sum,
                                      int slot) const
  {
    const step* const steps = shared_.steps + slot;
    values mixes[static_cast<std::size_t>(Depth)] = {};
    if (has_null_ != 0) {
      const step first = steps[0];
      sum = thread::multiply_add(accumulate{0}, first.rescale, first.weight);
#pragma unroll
      for (int place = 0; place < Depth; ++place) {
        if (columns.valid(place) && shared_.logits[slot] != -thread::infinity<accumulate>) {
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
  int unit_;
  int chunk_;
  std::int64_t position_;
  storage shared_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
