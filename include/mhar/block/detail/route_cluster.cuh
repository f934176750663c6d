// SPDX-License-Identifier: Apache-2.0
//! The forward of one position by a cluster of blocks: every block sums its columns of all rows at once, the blocks exchange the
//! sums through their shared memory, and each finishes its own columns.
#pragma once

#include <mhar/block/detail/cluster_heads.cuh>
#include <mhar/block/detail/cluster_sums.cuh>
#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/detail/route_finish.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How a block of route_cluster lies in shared memory, and how large it is.
template <class T>
struct cluster_block
{
  using storage = cluster_storage<T>;

  //! Threads that mix one chunk together.
  static constexpr int threads_per_chunk = 2;
  static constexpr int chunks_per_warp = 32 / threads_per_chunk;
  //! Of a thread's columns, in registers before their weights are known.
  static constexpr int held_rows = 10;

  storage shared;
  accumulate_t<T>* chunk_squares;  //!< [chunks]: o^2
  char* rows;                      //!< [rows][chunks], 16 bytes each

  //! Deep units of small elements take many registers.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int max_threads(int depth) noexcept
  {
    return depth == 4 && sizeof(T) < 4 ? 256 : 512;
  }
  //! What registers hold beside a unit's folded query.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int rows_per_task(int depth) noexcept
  {
    return depth == 4 ? 2 : 3;
  }
  [[nodiscard]] static constexpr std::size_t bytes(const thread::width_tree& tree, int sources,
                                                   int rows, int chunks) noexcept
  {
    const int shared =
        storage::bytes(tree, sources, chunks / chunks_per_warp, chunks_per_warp, held_rows + 1);
    return static_cast<std::size_t>(shared + chunks * 4 + rows * chunks * 16);
  }
  [[nodiscard]] __device__ __forceinline__ static cluster_block carve(
      char* memory, const thread::width_tree& tree, int sources, int chunks)
  {
    const int warps = chunks / chunks_per_warp;
    cluster_block b;
    b.shared = storage::carve(memory, tree, sources, warps, chunks_per_warp, held_rows + 1);
    memory += storage::bytes(tree, sources, warps, chunks_per_warp, held_rows + 1);
    b.chunk_squares = reinterpret_cast<accumulate_t<T>*>(memory);
    b.rows = memory + chunks * 4;
    return b;
  }
};

//! Sum of squares of o over the row, as block_squares. A chunk's owner has all of it.
template <class T>
class cluster_squares
{
public:
  using accumulate = accumulate_t<T>;

  __device__ __forceinline__ cluster_squares(const route_parameters<T>& p,
                                             const cluster_block<T>& block, int first_chunk,
                                             int units, bool owns, int local)
      : p_{p}, block_{block}, first_chunk_{first_chunk}, units_{units}, owns_{owns}, local_{local}
  {
  }
  [[nodiscard]] __device__ __forceinline__ accumulate
  operator()(const register_columns<T, 1>& columns, accumulate scale, bool again) const
  {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const cluster_storage<T>& shared = block_.shared;
    accumulate* const sums = shared.output_squares + (again ? shared.spans : 0);
    cluster_mailbox& mailbox = shared.mailboxes[again ? 2 : 1];
    // A chunk's square of the first time has been read.
    if (again) { __syncthreads(); }
    if (owns_) {
      block_.chunk_squares[local_] =
          columns.valid(0) ? sum_of_squares(columns.mix(0), scale) : accumulate{0};
    }
    __syncthreads();
    for (int unit = warp_of_thread(); unit < units_; unit += static_cast<int>(blockDim.x) / 32) {
      int local = unit * p_.tree.depth * 32 + lane;
      accumulate sum = block_.chunk_squares[local];
      for (int place = 1; place < p_.tree.depth; ++place) {
        local += 32;
        sum += block_.chunk_squares[local];
      }
      sum = butterfly_sum(sum, p_.tree.group);
      const int chunk = first_chunk_ + local;
      if (chunk >= p_.tree.num_chunks) { continue; }
      for (int block = lane & (p_.tree.group - 1); block < cluster::size();
           block += p_.tree.group) {
        mailbox.send(sums + (chunk >> p_.tree.span_shift), block, sum);
      }
    }
    mailbox.wait();
    return sum_spans<1>(sums, 0, p_.tree.num_spans, lane, 32)[0];
  }

private:
  const route_parameters<T>& p_;
  const cluster_block<T>& block_;
  int first_chunk_;
  int units_;
  bool owns_;
  int local_;
};

template <class T, int Depth, int Capacity>
class route_cluster
{
public:
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;
  using block_type = cluster_block<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  static constexpr int threads_per_chunk = block_type::threads_per_chunk;
  static constexpr int held_rows = block_type::held_rows;
  //! Columns that a thread mixes.
  static constexpr int part_width = chunk_width / threads_per_chunk;
  using part = thread::vector<accumulate, part_width>;
  using raw_part = thread::vector<std::uint32_t, 2>;

  //! `units` of 32*Depth chunks are this block's; the last block may have fewer.
  __device__ __forceinline__ route_cluster(const route_parameters<T>& p,
                                           const row_pointers<T, Capacity>& rows, int units,
                                           char* memory)
      : p_{p},
        rows_{rows},
        units_{units},
        has_null_{p.null_source ? 1 : 0},
        num_sources_{p.num_rows + has_null_},
        chunks_{units * Depth * 32},
        first_chunk_{cluster::rank() * chunks_},
        position_{blockIdx.x / static_cast<unsigned>(cluster::size())},
        lane_{static_cast<int>(threadIdx.x) & 31},
        warp_{warp_of_thread()},
        local_{static_cast<int>(threadIdx.x) / threads_per_chunk},
        block_{block_type::carve(memory, p.tree, num_sources_, chunks_)}
  {
    mixes_ = local_ < chunks_ && first_chunk_ + local_ < p.tree.num_chunks;
  }

  __device__ __forceinline__ void operator()()
  {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) { block_.shared.open(); }
    // The other blocks have to run before anything is sent to them.
    cluster::arrive_without_order();
    const bool owns = thread % threads_per_chunk == 0;
    register_columns<T, 1> columns{p_, first_chunk_ + local_, owns && mixes_};
    // Of the warp: heads of its first and last column.
    const int warp_chunk = first_chunk_ + warp_ * (32 / threads_per_chunk);
    const int head = p_.tree.head_of(mixes_ ? first_chunk_ + local_ : warp_chunk);
    const int first_head = __shfl_sync(full_warp, head, 0);
    const int last_head = __reduce_max_sync(full_warp, head);
    const bool warp_mixes = __any_sync(full_warp, mixes_);
    const int end_chunk = first_chunk_ + chunks_;
    const int last_chunk = (end_chunk < p_.tree.num_chunks ? end_chunk : p_.tree.num_chunks) - 1;
    const int first_of_block = p_.tree.head_of(first_chunk_);
    cluster_logits<T> logits{p_,
                             block_.shared,
                             warp_,
                             static_cast<int>(blockDim.x) / 32,
                             first_of_block,
                             p_.tree.head_of(last_chunk)};
    const cluster_heads<T> heads{p_, block_.shared, first_of_block, first_head,
                                 warp_ * block_.shared.slots};
    const bool begins = mixes_ && column() == head * p_.tree.head_width;
    // The usual case is short: what route_finish does for nothing but y, by all threads.
    const bool only_y = stores_only_y(p_);
    char* const y = static_cast<char*>(p_.y.data) +
                    (position_ * p_.y.position_stride + column()) * size_of(p_.y.type);
    part mix{};
    accumulate gate = 1;
    sum_sources([&] {
      logits.load_bias();
      if (has_null_ != 0 && mixes_) {
        mix = load_parameter<accumulate, part_width>(p_.null_source, column(), part_width, 0);
      }
      if (p_.gate) { gate = load_scalar<accumulate>(p_.gate.data, p_.gate.type, 0); }
    });
    using squares_type = cluster_squares<T>;
    route_finish<T, register_columns<T, 1>, squares_type> finish{
        p_, columns,
        squares_type{p_, block_, first_chunk_, units_, owns && local_ < chunks_, local_}, gate};
    __syncthreads();
    raw_part held[static_cast<std::size_t>(held_rows)];
#pragma unroll
    for (int k = 0; k < held_rows; ++k) {
      held[k] = {};
      if (mixes_ && k < p_.num_rows) { held[k] = raw(k); }
    }
    block_.shared.mailboxes[0].wait();
    const bool stores = cluster::rank() == 0;
    // The same in all blocks.
    const bool read_others = __syncthreads_or(logits.find(position_, stores) ? 1 : 0) != 0;
    if (read_others) {
      // The sums came without what else their senders had written.
      cluster::sync();
      logits.find(position_, stores, cluster_rows<T>{block_.rows, chunks_});
      __syncthreads();
    }
    if (warp_mixes) {
#pragma unroll 1
      for (int h = first_head; h <= last_head; ++h) { heads.find_steps(h); }
    }
    __syncwarp();

    thread::softmax_state<accumulate> state;
    if (mixes_) {
      const step* const steps = heads.steps(head);
      if (has_null_ != 0) {
        const step first = steps[0];
        state.sum = thread::multiply_add(accumulate{0}, first.rescale, first.weight);
        if (*heads.logits(head) == -thread::infinity<accumulate>) { mix = {}; }
      }
      const step* const of_rows = steps + has_null_;
#pragma unroll
      for (int k = 0; k < held_rows; ++k) { take(mix, state.sum, of_rows[k], held[k]); }
#pragma unroll 4
      for (int k = held_rows; k < p_.num_rows; ++k) { take(mix, state.sum, of_rows[k], raw(k)); }
    }
    if (only_y) { store_y(y, mix, state.normalizer()); }
    else {
      join(columns, mix);
      finish(position_, own_normalizer<accumulate>{state.normalizer()});
    }
    if (warp_mixes) { heads.store(state.sum, position_, begins, head, last_head); }
    if (read_others) { cluster::sync(); }
  }

private:
  //! A task is a unit of some rows, or of the null source; a warp does one at a time. Rows are left in shared memory. `load_rest`
  //! is called once: while the first rows are on their way, or where those leave no registers for it, at the end.
  template <class LoadRest>
  __device__ __forceinline__ void sum_sources(const LoadRest& load_rest)
  {
    constexpr int at_once = block_type::rows_per_task(Depth);
    constexpr bool early = Depth == 1;
    const int row_tasks = (p_.num_rows + at_once - 1) / at_once;
    const int num_tasks = units_ * (row_tasks + has_null_);
    cluster_rows_held<T, Depth, at_once> held{p_};
    bool first = true;
    // All warps take a first round, since it has barriers in it.
    for (int task = warp_; first || task < num_tasks; task += static_cast<int>(blockDim.x) / 32) {
      const int batch = task / units_;
      const int local = (task - batch * units_) * Depth * 32 + lane_;
      const bool takes_rows = batch < row_tasks;
      if (takes_rows) { held.aim(rows_, position_, first_chunk_ + local, batch * at_once); }
      if (first) {
        cluster::wait();
        wait_for_dependencies();
        release_dependents();
      }
      if (takes_rows) {
        held.template load_rows<0, at_once>();
        held.load_parameters();
      }
      if (early && first) { load_rest(); }
      first = false;
      if (!takes_rows) {
        if (task < num_tasks) { sum_null(p_, block_.shared, first_chunk_ + local); }
        continue;
      }
      held.fold();
      char* const to = block_.rows + (batch * at_once * chunks_ + local) * 16;
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
#pragma unroll
        for (int place = 0; place < Depth; ++place) {
          if (k < held.count() && held.valid()) {
            thread::store_vector(
                reinterpret_cast<std::uint32_t*>(to + (k * chunks_ + place * 32) * 16),
                held.raw(k, place));
          }
        }
      }
      const int updated = p_.updated_row - batch * at_once;
      if (updated >= 0 && updated < held.count()) {
        if (held.valid()) {
          update_chunks<T, Depth>(p_, to + updated * chunks_ * 16, position_, first_chunk_ + local);
        }
        held.reload(to, chunks_ * 16);
      }
      held.template sum_and_send<at_once>(block_.shared);
    }
    if (!early) { load_rest(); }
  }
  [[nodiscard]] __device__ __forceinline__ int column() const
  {
    return (first_chunk_ + local_) * chunk_width +
           static_cast<int>(threadIdx.x) % threads_per_chunk * part_width;
  }
  //! This thread's columns of a row.
  [[nodiscard]] __device__ __forceinline__ raw_part raw(int k) const
  {
    return thread::load_vector<std::uint32_t, 2>(
        reinterpret_cast<const std::uint32_t*>(block_.rows + k * chunks_ * 16) + 2 * threadIdx.x);
  }
  //! Eq. 5 for one row.
  static __device__ __forceinline__ void take(part& mix, accumulate& sum, const step& next,
                                              const raw_part& row)
  {
    const part s = widen_words<T>(row);
    sum = thread::multiply_add(sum, next.rescale, next.weight);
#pragma unroll
    for (int c = 0; c < part_width; ++c) {
      // A factor of 1 changes no bit.
      mix[c] = thread::multiply_add(next.weight, s[c], mix[c] * next.rescale);
    }
  }
  __device__ __forceinline__ void store_y(char* y, part mix, accumulate normalizer) const
  {
    if (!mixes_) { return; }
#pragma unroll
    for (int c = 0; c < part_width; ++c) { mix[c] *= normalizer; }
    if (p_.y.type == element_of<T>::value) { store_accesses(reinterpret_cast<T*>(y), mix); }
    else {
      store_accesses(reinterpret_cast<float*>(y), mix);
    }
  }
  //! Gives the owner of a chunk the other thread's half.
  static __device__ __forceinline__ void join(register_columns<T, 1>& columns, const part& mix)
  {
    thread::vector<accumulate, chunk_width> whole;
#pragma unroll
    for (int c = 0; c < part_width; ++c) {
      whole[c] = mix[c];
      whole[part_width + c] = __shfl_down_sync(full_warp, mix[c], 1);
    }
    columns.set_mix(0, whole);
  }

  const route_parameters<T>& p_;
  const row_pointers<T, Capacity>& rows_;
  int units_;
  int has_null_;
  int num_sources_;
  int chunks_;
  int first_chunk_;
  std::int64_t position_;
  int lane_;
  int warp_;
  int local_;
  bool mixes_;
  block_type block_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
