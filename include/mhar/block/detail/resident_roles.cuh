// SPDX-License-Identifier: Apache-2.0
//! What the warps of a block do whose shared memory holds whole positions: fetch rows, sum them, find softmax steps, mix.
#pragma once

#include <mhar/block/detail/named_barrier.cuh>
#include <mhar/block/detail/resident_columns.cuh>
#include <mhar/block/detail/resident_heads.cuh>
#include <mhar/block/detail/route_finish.cuh>
#include <mhar/block/detail/route_heads.cuh>
#include <mhar/block/detail/route_steps.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A stage goes from the warp that fetches it to a set of those that sum it; when that has happened to all stages of a position,
//! to those that serve the heads, to those that mix, and back. Every hand-over is a barrier
//! in shared memory, so warps of different roles work on different positions.
template <class T, int ChunksPerThread, bool Joined, int Capacity>
class resident_roles
{
public:
  using accumulate = accumulate_t<T>;
  using columns_type = register_columns<T, ChunksPerThread>;
  using plain_type = plain_columns<T, ChunksPerThread, Joined>;
  using storage_type = resident_storage<accumulate>;

  __device__ __forceinline__ resident_roles(const route_parameters<T>& p,
                                            const row_pointers<T, Capacity>& rows,
                                            const resident_shape& shape, char* memory)
      : p_{p},
        rows_{rows},
        shape_{shape},
        num_sources_{p.num_rows + (p.null_source ? 1 : 0)},
        shared_{memory, p.tree, num_sources_, shape.stages.num_stages, shape.stages.rows},
        staged_{memory + storage_type::bytes(p.tree, num_sources_, shape.stages.num_stages,
                                             shape.stages.rows)}
  {
  }

  //! By one warp, before a barrier of the block. All lanes of a warp arrive, each for itself: that costs no more than one for all,
  //! and compute-sanitizer follows it.
  __device__ __forceinline__ void init_barriers() const
  {
    const int column_threads = 32 * shape_.column_warps;
    if ((threadIdx.x & 31) == 0) {
      for (int stage = 0; stage < shape_.stages.num_stages; ++stage) {
        shared_.summed(stage).init(column_threads);
        shared_.empty(stage).init(column_threads);
      }
      for (int parity = 0; parity < 2; ++parity) {
        shared_.stepped(parity).init(32 * shape_.head_warps);
        shared_.closed(parity).init(32);
        shared_.mixed(parity).init(column_threads);
      }
    }
    source().init_barriers();
  }

  //! By all warps.
  __device__ __forceinline__ void find_null_logits(int warp) const
  {
    if (!p_.null_source) { return; }
    // No row has come yet: the sums may reach into the stages.
    route_storage<accumulate> storage{};
    storage.stride = shared_.stride();
    storage.sums = shared_.sums(0);
    storage.null_logits = shared_.null_logits();
    const null_row<T> null{p_};
    sum_keys(p_, storage, null, 1, key_rounding::none, warp, static_cast<int>(blockDim.x) / 32);
    __syncthreads();
    if (warp == 0) { route_heads<T>{p_, 0, 1}.find_null_logits(storage, null); }
    fence_bulk_copies();
    __syncthreads();
  }

  //! By one warp.
  __device__ __forceinline__ void fetch() const
  {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int row_bytes = shape_.stages.row_bytes;
    resident_place next;
    for (bool first = true; exists(next); next.advance(shape_.stages, 1)) {
      const int count = num_rows(next);
      const T* const from = lane < count
                                ? rows_.at(next.batch * shape_.stages.rows + lane, next.position())
                                : nullptr;
      if (!first) { shared_.empty(next.stage).wait(next.phase ^ 1); }
      if (lane == 0) { full(next).expect(count * row_bytes); }
      __syncwarp();
      if (lane < count) {
        copy_bulk(stage_of(next) + lane * row_bytes, from, row_bytes, full(next));
      }
      if (next.batch == 0) {
        prefetch_position(p_.partial, p_.tree.width, next.position());
        prefetch_position(p_.delta, p_.tree.width, next.position());
      }
      first = first && next.stage < shape_.stages.num_stages - 1;
    }
  }

  //! `warp` of column_warps * splits.
  __device__ __forceinline__ void sum(int warp) const
  {
    const int set = warp / shape_.column_warps;
    columns_type columns{p_, warp - set * shape_.column_warps};
    columns.load_weights(p_);
    const resident_sums<T, ChunksPerThread, Joined> work{p_, columns, shared_.stride(),
                                                         shared_.squares_distance()};
    resident_place now;
    bool first = true;
    for (now.advance(shape_.stages, set); exists(now); now.advance(shape_.stages, shape_.splits)) {
      char* const stage = stage_of(now);
      const int count = num_rows(now);
      // What was in the stage before may be another set's and not have come: then the end of the phase
      // before it would pass for this one's.
      if (shape_.splits > 1 && !first) { shared_.empty(now.stage).wait(now.phase ^ 1); }
      full(now).wait(now.phase);
      if (p_.updated_row >= 0) { update(columns, now, stage, count); }
      work(stage, shape_.stages.row_bytes, count, shared_.sums(now.stage));
      shared_.summed(now.stage).arrive();
      first = first && now.stage + shape_.splits < shape_.stages.num_stages;
    }
  }

  //! `warp` of head_warps.
  __device__ __forceinline__ void serve_heads(int warp) const
  {
    const resident_heads<T> heads{p_, shared_};
    const route_steps<T> steps{p_};
    const named_barrier<6> others{32 * shape_.head_warps};
    resident_place now;
    while (exists(now)) {
      const std::int64_t position = now.position();
      const int parity = parity_of(now.turn);
      accumulate* const logits = shared_.logits(parity);
      if (now.turn >= 2) { shared_.mixed(parity).wait(phase_of(now.turn) ^ 1); }
      int task = 0;
      do {
        const int count = num_rows(now);
        for (int k = 0; k < count; k += heads.rows) {
          if (task == warp) {
            shared_.summed(now.stage).wait(now.phase);
            heads(shared_.sums(now.stage) + k * shared_.stride(),
                  stage_of(now) + k * shape_.stages.row_bytes, shape_.stages.row_bytes, position,
                  now.batch * shape_.stages.rows + k,
                  count - k < heads.rows ? count - k : heads.rows, logits);
          }
          task = task + 1 == shape_.head_warps ? 0 : task + 1;
        }
        now.advance(shape_.stages, 1);
      } while (now.batch != 0);
      if (p_.null_source && warp == 0) {
        for (int head = static_cast<int>(threadIdx.x) & 31; head < p_.tree.num_heads; head += 32) {
          logits[head] = shared_.null_logits()[head];
        }
      }
      others.sync();
      steps.find_steps(logits, shared_.steps(parity), shared_.maxima(parity), warp,
                       shape_.head_warps);
      shared_.stepped(parity).arrive();
    }
  }

  //! By one warp: what is known of a softmax only after its last step, while the mix is under way.
  __device__ __forceinline__ void close() const
  {
    const route_steps<T> steps{p_};
    for (resident_place now; exists(now); ++now.turn) {
      const int parity = parity_of(now.turn);
      shared_.stepped(parity).wait(phase_of(now.turn));
      steps.close(now.position(), shared_.logits(parity), shared_.steps(parity),
                  shared_.maxima(parity), shared_.normalizers(parity));
      shared_.closed(parity).arrive();
    }
  }

  __device__ __forceinline__ void mix() const
  {
    plain_type columns{p_};
    resident_mix<T, ChunksPerThread, Joined> work{p_, columns};
    using squares_type = block_squares<T, plain_type, named_barrier<5>>;
    route_finish<T, plain_type, squares_type> finish{
        p_, columns, squares_type{p_, shared_.output_sums(), {32 * shape_.column_warps}, true}};
    resident_place now;
    while (exists(now)) {
      const int turn = now.turn;
      start_mix(columns);
      shared_.stepped(parity_of(turn)).wait(phase_of(turn));
      const auto* steps =
          shared_.steps(parity_of(turn)) + (p_.null_source ? 1 : 0) * p_.tree.num_heads;
      do {
        const int count = num_rows(now);
        // Long since there: what makes the copies visible to this thread.
        full(now).wait(now.phase);
        work(stage_of(now), shape_.stages.row_bytes, count, steps);
        shared_.empty(now.stage).arrive();
        steps += count * p_.tree.num_heads;
        now.advance(shape_.stages, 1);
      } while (now.batch != 0);
      shared_.closed(parity_of(turn)).wait(phase_of(turn));
      columns.forget_addresses();
      finish(resident_place{turn}.position(), shared_.normalizers(parity_of(turn)));
      shared_.mixed(parity_of(turn)).arrive();
    }
  }

private:
  [[nodiscard]] __device__ __forceinline__ bool exists(const resident_place& place) const
  {
    return place.position() < p_.num_positions;
  }
  [[nodiscard]] __device__ __forceinline__ row_stages<T, Capacity> source() const
  {
    return {p_, rows_, shape_.stages, staged_, shared_.full_barriers()};
  }
  [[nodiscard]] __device__ __forceinline__ copy_barrier full(const resident_place& place) const
  {
    return {shared_.full_barriers() + place.stage};
  }
  [[nodiscard]] __device__ __forceinline__ char* stage_of(const resident_place& place) const
  {
    return staged_ + place.stage * shape_.stages.rows * shape_.stages.row_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ int num_rows(const resident_place& place) const
  {
    const int left = p_.num_rows - place.batch * shape_.stages.rows;
    return left < shape_.stages.rows ? left : shape_.stages.rows;
  }
  __device__ __forceinline__ void update(const columns_type& columns, const resident_place& now,
                                         char* stage, int count) const
  {
    const int updated = p_.updated_row - now.batch * shape_.stages.rows;
    if (updated < 0 || updated >= count) { return; }
    staged_rows<T>{stage, shape_.stages.row_bytes}.update(p_, columns, now.position(), updated);
    fence_bulk_copies();
  }

  //! Eq. 5 begins with the null source, or with nothing.
  __device__ __forceinline__ void start_mix(plain_type& columns) const
  {
#pragma unroll
    for (int i = 0; i < ChunksPerThread; ++i) {
      typename plain_type::values mix{};
      if (p_.null_source && columns.valid(i) &&
          shared_.null_logits()[columns.head(i)] != -thread::infinity<accumulate>) {
        mix = columns.load(p_.null_source, i, accumulate{0});
      }
      columns.set_mix(i, mix);
    }
  }

  const route_parameters<T>& p_;
  const row_pointers<T, Capacity>& rows_;
  const resident_shape& shape_;
  int num_sources_;
  storage_type shared_;
  char* staged_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
