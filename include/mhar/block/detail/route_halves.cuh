// SPDX-License-Identifier: Apache-2.0
//! The forward of one position by a cluster of two blocks where a call has one head and nothing unusual, for as many positions as
//! there are multiprocessors: the copy engine brings all rows at once, sets of warps sum them as they come, and mix the first ones
//! while the last ones are still on their way.
#pragma once

#include <mhar/block/detail/bulk_copy.cuh>
#include <mhar/block/detail/decode_sums.cuh>
#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/detail/named_barrier.cuh>
#include <mhar/block/detail/warp_barrier.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How a block of route_halves lies in shared memory.
template <class T>
struct halves_block
{
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;

  static constexpr int max_rows = decode_rows;
  //! That sum and mix; one more finds the steps.
  static constexpr int max_warps = 14;
  static constexpr int quads_per_chunk = thread::chunk_width<T> / 4;

  std::uint64_t* barriers;     //!< [max_rows]: a row has come
  cluster_mailbox* mailboxes;  //!< [max_rows]: sums of a group of rows
  std::uint64_t* stepped;      //!< [max_rows]: the steps of a group are there
  step* steps;                 //!< [max_rows]
  accumulate*
      sums;  //!< [rows][decode_stride]: of all columns, <w, s> and s^2 of each span, then zeros
  accumulate* maximum;  //!< of all logits
  float4* weights;      //!< [quads_per_chunk][chunks]: the folded query
  char* rows;           //!< [rows][chunks], 16 bytes each

  static constexpr int head_bytes = 32 * max_rows + 16;

  [[nodiscard]] static constexpr std::size_t bytes(int rows, int chunks) noexcept
  {
    return static_cast<std::size_t>(head_bytes + 4 * rows * decode_stride +
                                    (quads_per_chunk + rows) * chunks * 16);
  }
  [[nodiscard]] __device__ __forceinline__ static halves_block carve(char* memory, int rows,
                                                                     int chunks)
  {
    halves_block b;
    b.barriers = reinterpret_cast<std::uint64_t*>(memory);
    b.mailboxes = reinterpret_cast<cluster_mailbox*>(b.barriers + max_rows);
    b.stepped = reinterpret_cast<std::uint64_t*>(b.mailboxes + max_rows);
    b.steps = reinterpret_cast<step*>(b.stepped + max_rows);
    b.maximum = reinterpret_cast<accumulate*>(b.steps + max_rows);
    b.sums = reinterpret_cast<accumulate*>(memory + head_bytes);
    b.weights = reinterpret_cast<float4*>(b.sums + rows * decode_stride);
    b.rows = reinterpret_cast<char*>(b.weights + quads_per_chunk * chunks);
    return b;
  }
};

//! One head, spans of whole warps, parameters of aligned floats, y of T and lse. A thread mixes one chunk.
template <class T, int Depth, int Capacity>
class route_halves
{
public:
  using accumulate = accumulate_t<T>;
  using block_type = halves_block<T>;
  using step = typename block_type::step;
  using words = thread::vector<std::uint32_t>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  static constexpr int quads = block_type::quads_per_chunk;
  using values = thread::vector<accumulate, chunk_width>;

  //! `units` of 32*Depth chunks are this block's; the last block may have fewer.
  __device__ __forceinline__ route_halves(const route_parameters<T>& p,
                                          const row_pointers<T, Capacity>& rows, int units,
                                          char* memory)
      : p_{p},
        rows_{rows},
        thread_{static_cast<int>(threadIdx.x)},
        lane_{thread_ & 31},
        warp_{warp_of_thread()},
        warps_{static_cast<int>(blockDim.x) / 32},
        units_{units},
        chunks_{units * Depth * 32},
        first_chunk_{cluster::rank() * chunks_},
        position_{blockIdx.x / static_cast<unsigned>(cluster::size())},
        block_{block_type::carve(memory, p.num_rows, chunks_)}
  {
  }

  __device__ __forceinline__ void operator()()
  {
    // Every chunk of the block, or of the row.
    const int left = p_.tree.num_chunks - first_chunk_;
    const int chunks = chunks_ < left ? chunks_ : left;
    // A set of warps sums two rows of a group, whose steps are then found together.
    const int sets = (warps_ - 1) / units_;
    const int group_rows = 2 * sets;
    if (warp_ == warps_ - 1) {
      find_steps(chunks, group_rows);
      return;
    }
    cluster::arrive_without_order();
    clear_absent_spans(block_.sums, p_.num_rows, p_.tree.num_spans, warp_, warps_ - 1);
    const int set = warp_ / units_;
    const int chunk = (warp_ - set * units_) * Depth * 32 + lane_;
    const bool sums = chunk < chunks;
    const bool folds = static_cast<bool>(p_.norm_weight);
    const bool mixes = thread_ < chunks;
    const int column = (first_chunk_ + (mixes ? thread_ : 0)) * chunk_width;
    const float* const query = kept_address(static_cast<const float*>(p_.query.data) + column);
    const float* const norm_weight =
        kept_address(static_cast<const float*>(p_.norm_weight.data) + column);
    T* const y =
        kept_address(static_cast<T*>(p_.y.data) + position_ * p_.y.position_stride + column);
    cluster::wait();
    wait_for_dependencies();
    release_dependents();

    fold(query, norm_weight, folds, mixes);
    __syncthreads();
    values weights[static_cast<std::size_t>(Depth)];
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
      weights[place] = load_folded<T>(block_.weights + (sums ? chunk : 0) + place * 32, chunks_);
    }
    const accumulate* const span = block_.sums + 2 * ((first_chunk_ + chunk) >> p_.tree.span_shift);
    const char* from = block_.rows + (set * chunks_ + chunk) * 16;
    row_sum_places<accumulate> to{span + set * decode_stride, block_.mailboxes, sets};
    values mixed{};
    thread::softmax_state<accumulate> state;
    const int set_bytes = sets * chunks_ * 16;
    int row = set;
    int group = 0;
#pragma unroll 1
    for (int first = 0; first < p_.num_rows; first += group_rows) {
      if (sums && row < p_.num_rows) {
        copy_barrier{block_.barriers + row}.wait(0);
        const key_sums<accumulate> of_row = sum_of_lane(weights, from);
        if (row + sets < p_.num_rows) {
          copy_barrier{block_.barriers + row + sets}.wait(0);
          to.send(of_row, sum_of_lane(weights, from + set_bytes));
        }
        else {
          to.send(of_row);
        }
      }
      // The steps of the group before have been found meanwhile.
      if (group > 0 && mixes) { mix(mixed, state.sum, group - 1, group_rows); }
      ++group;
      row += group_rows;
      from += 2 * set_bytes;
      to.advance(group_rows);
    }
    if (!mixes) { return; }
    mix(mixed, state.sum, group - 1, group_rows);
    const accumulate normalizer = state.normalizer();
#pragma unroll
    for (int c = 0; c < chunk_width; ++c) { mixed[c] *= normalizer; }
    store_accesses(y, mixed);
    if (thread_ == 0 && cluster::rank() == 0 && p_.lse != nullptr) {
      state.maximum = *block_.maximum;
      p_.lse[position_] = state.log_sum_exp();
    }
  }

private:
  //! The query of the thread's chunk goes to shared memory. The rows are asked for when all have asked for theirs.
  __device__ __forceinline__ void fold(const float* query, const float* norm_weight, bool folds,
                                       bool mixes) const
  {
    float4 weights[static_cast<std::size_t>(quads)]{};
    float4 factors[static_cast<std::size_t>(quads)];
#pragma unroll
    for (int quad = 0; quad < quads; ++quad) {
      if (mixes) { weights[quad] = reinterpret_cast<const float4*>(query)[quad]; }
      factors[quad] = make_float4(1, 1, 1, 1);
      if (folds && mixes) { factors[quad] = reinterpret_cast<const float4*>(norm_weight)[quad]; }
    }
    parameters_asked_for().arrive();
    if (!mixes) { return; }
#pragma unroll
    for (int quad = 0; quad < quads; ++quad) {
      block_.weights[quad * chunks_ + thread_] = fold_quad(weights[quad], factors[quad], p_.scale);
    }
  }
  [[nodiscard]] __device__ __forceinline__ named_barrier<1> parameters_asked_for() const
  {
    return {32 * warps_};
  }
  [[nodiscard]] static __device__ __forceinline__ words load_words(const char* from)
  {
    return thread::load_vector(reinterpret_cast<const std::uint32_t*>(from));
  }
  //! Of a row over the lane's chunks of a unit.
  [[nodiscard]] static __device__ __forceinline__ key_sums<accumulate> sum_of_lane(
      const values (&weights)[static_cast<std::size_t>(Depth)], const char* from)
  {
    key_sums<accumulate> of_lane;
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
      key_sums<accumulate> of_chunk;
      multiply_key(of_chunk, weights[place], widen_words<T>(load_words(from + place * 512)));
      of_lane.product = place == 0 ? of_chunk.product : of_lane.product + of_chunk.product;
      of_lane.square = place == 0 ? of_chunk.square : of_lane.square + of_chunk.square;
    }
    return of_lane;
  }
  //! By a warp of its own, which also asks for the rows: the steps of one group of rows after the other.
  __device__ __forceinline__ void find_steps(int chunks, int group_rows) const
  {
    const copy_barrier arrival{block_.barriers + lane_};
    const bool copies = lane_ < p_.num_rows;
    const int left = p_.num_rows - lane_ * group_rows;
    if (copies) { arrival.init(); }
    if (left > 0) {
      block_.mailboxes[lane_].init();
      stepped(lane_).init(32);
    }
    // Each lane has its own; racecheck takes lanes that make barriers ready at once for one another.
    __syncwarp();
    if (left > 0) {
      const int rows = left < group_rows ? left : group_rows;
      block_.mailboxes[lane_].expect(2 * rows * p_.tree.num_spans);
    }
    fence_bulk_copies();
    // The other block has to run before anything is sent to it.
    cluster::arrive_without_order();
    const T* const from = kept_address(rows_.at(copies ? lane_ : 0, position_) +
                                       first_chunk_ * std::int64_t{chunk_width});
    accumulate reciprocal = reciprocal_width<accumulate>(p_.tree.width);
    // Found here, not where it is used.
    asm volatile("" : "+f"(reciprocal));
    cluster::wait();
    wait_for_dependencies();
    release_dependents();
    parameters_asked_for().sync();
    if (copies) {
      arrival.expect(chunks * 16);
      copy_bulk(block_.rows + lane_ * chunks_ * 16, from, chunks * 16, arrival);
    }
    __syncthreads();
    int group = 0;
#pragma unroll 1
    for (int first = 0; first < p_.num_rows; first += group_rows) {
      const int end = first + group_rows < p_.num_rows ? first + group_rows : p_.num_rows;
      block_.mailboxes[group].wait();
      prefix_step<accumulate> found = step_of_lane(
          logit_of_lane(p_, rows_, position_, end, block_.sums, reciprocal), p_.num_rows);
      // The first one rescales a mix of zeros.
      if (lane_ == 0) { found.step.rescale = 1; }
      if (lane_ >= first && lane_ < end) { block_.steps[lane_] = found.step; }
      if (lane_ == p_.num_rows - 1) { *block_.maximum = found.maximum; }
      stepped(group).arrive();
      ++group;
    }
  }
  [[nodiscard]] __device__ __forceinline__ warp_barrier stepped(int group) const
  {
    return {static_cast<std::uint32_t>(__cvta_generic_to_shared(block_.stepped + group))};
  }
  //! Eq. 5 for `Count` rows.
  template <int Count, bool Rescales>
  static __device__ __forceinline__ void take(values& mixed,
                                              const step (&steps)[static_cast<std::size_t>(Count)],
                                              const words (&held)[static_cast<std::size_t>(Count)])
  {
#pragma unroll
    for (int k = 0; k < Count; ++k) {
      const values s = widen_words<T>(held[k]);
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) {
        // A factor of 1 changes nothing.
        mixed[c] = thread::multiply_add(steps[k].weight, s[c],
                                        Rescales ? mixed[c] * steps[k].rescale : mixed[c]);
      }
    }
  }
  template <int Count>
  __device__ __forceinline__ void take(values& mixed, accumulate& sum, const step* from,
                                       const char* row) const
  {
    words held[static_cast<std::size_t>(Count)];
    step steps[static_cast<std::size_t>(Count)];
    bool rescales = false;
#pragma unroll
    for (int k = 0; k < Count; ++k) {
      held[k] = load_words(row + k * chunks_ * 16);
      steps[k] = from[k];
    }
#pragma unroll
    for (int k = 0; k < Count; ++k) {
      rescales = rescales || steps[k].rescale != accumulate{1};
      sum = thread::multiply_add(sum, steps[k].rescale, steps[k].weight);
    }
    if (rescales) { take<Count, true>(mixed, steps, held); }
    else {
      take<Count, false>(mixed, steps, held);
    }
  }
  //! The rows of a group.
  __device__ __forceinline__ void mix(values& mixed, accumulate& sum, int group,
                                      int group_rows) const
  {
    stepped(group).wait(0);
    const int first = group * group_rows;
    const int end = first + group_rows < p_.num_rows ? first + group_rows : p_.num_rows;
    const char* row = block_.rows + (first * chunks_ + thread_) * 16;
    const step* steps = block_.steps + first;
#pragma unroll 1
    for (int left = end - first; left > 0; left -= 2) {
      if (left > 1) { take<2>(mixed, sum, steps, row); }
      else {
        take<1>(mixed, sum, steps, row);
      }
      row += 2 * chunks_ * 16;
      steps += 2;
    }
  }

  const route_parameters<T>& p_;
  const row_pointers<T, Capacity>& rows_;
  int thread_;
  int lane_;
  int warp_;
  int warps_;
  int units_;
  int chunks_;
  int first_chunk_;
  std::int64_t position_;
  block_type block_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
