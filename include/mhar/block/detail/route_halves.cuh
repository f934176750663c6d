// SPDX-License-Identifier: Apache-2.0
//! The forward of one position by a cluster of two blocks where a call has one head and nothing unusual, for as many positions as
//! there are multiprocessors: the copy engine brings all rows at once, and two sets of warps sum them as they come.
#pragma once

#include <mhar/block/detail/bulk_copy.cuh>
#include <mhar/block/detail/decode_sums.cuh>
#include <mhar/block/detail/dependency.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How a block of route_halves lies in shared memory.
template <class T>
struct halves_block
{
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;

  static constexpr int max_rows = decode_rows;
  static constexpr int max_warps = 14;
  static constexpr int quads_per_chunk = thread::chunk_width<T> / 4;
  //! Mixed together.
  static constexpr int rows_at_once = 3;

  cluster_mailbox* mailbox;
  unsigned* rescales;       //!< bit n: step n rescales
  std::uint64_t* barriers;  //!< [max_rows]: a row has come
  accumulate*
      sums;     //!< [rows][decode_stride]: of all columns, <w, s> and s^2 of each span, then zeros
  step* steps;  //!< [max_rows]
  float4* weights;  //!< [quads_per_chunk][chunks]: the folded query
  char* rows;       //!< [rows][chunks], 16 bytes each

  [[nodiscard]] static constexpr std::size_t bytes(int rows, int chunks) noexcept
  {
    return static_cast<std::size_t>(16 + 16 * max_rows + 4 * rows * decode_stride +
                                    (quads_per_chunk + rows) * chunks * 16);
  }
  [[nodiscard]] __device__ __forceinline__ static halves_block carve(char* memory, int rows,
                                                                     int chunks)
  {
    halves_block b;
    b.mailbox = reinterpret_cast<cluster_mailbox*>(memory);
    b.rescales = reinterpret_cast<unsigned*>(memory + 8);
    b.barriers = reinterpret_cast<std::uint64_t*>(memory + 16);
    b.steps = reinterpret_cast<step*>(b.barriers + max_rows);
    b.sums = reinterpret_cast<accumulate*>(b.steps + max_rows);
    b.weights = reinterpret_cast<float4*>(b.sums + rows * decode_stride);
    b.rows = reinterpret_cast<char*>(b.weights + quads_per_chunk * chunks);
    return b;
  }
};

//! By one warp; `maximum_of_lane` is that of the rows up to the lane's.
template <class T>
__device__ __forceinline__ void store_lse(const route_parameters<T>& p, std::int64_t position,
                                          const thread::softmax_step<accumulate_t<T>>* steps,
                                          accumulate_t<T> maximum_of_lane)
{
  using accumulate = accumulate_t<T>;
  thread::softmax_state<accumulate> state;
  state.maximum = __shfl_sync(full_warp, maximum_of_lane, p.num_rows - 1);
  if ((threadIdx.x & 31) != 0) { return; }
#pragma unroll 1
  for (int k = 0; k < p.num_rows; ++k) {
    state.sum = thread::multiply_add(state.sum, steps[k].rescale, steps[k].weight);
  }
  p.lse[position] = state.log_sum_exp();
}

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
  static constexpr int rows_at_once = block_type::rows_at_once;
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
        chunks_{units * Depth * 32},
        first_chunk_{cluster::rank() * chunks_},
        position_{blockIdx.x / static_cast<unsigned>(cluster::size())},
        block_{block_type::carve(memory, p.num_rows, chunks_)}
  {
  }

  __device__ __forceinline__ void operator()()
  {
    const copy_barrier arrival{block_.barriers + lane_};
    const bool copies = warp_ == 0 && lane_ < p_.num_rows;
    if (copies) {
      arrival.init();
      fence_bulk_copies();
    }
    if (thread_ == 0) { block_.mailbox->open(2 * p_.num_rows * p_.tree.num_spans); }
    // The other block has to run before anything is sent to it.
    cluster::arrive_without_order();
    clear_absent_spans(block_.sums, p_.num_rows, p_.tree.num_spans, warp_, warps_);
    // Every chunk of the block, or of the row.
    const int left = p_.tree.num_chunks - first_chunk_;
    const int chunks = chunks_ < left ? chunks_ : left;
    const int units = chunks / (32 * Depth);
    const int sets = warps_ / units;
    const int set = warp_ / units;
    const int unit = warp_ - set * units;
    const bool folds = static_cast<bool>(p_.norm_weight);
    const bool mixes = thread_ < chunks;
    const int chunk = unit * Depth * 32 + lane_;
    const int column = (first_chunk_ + (mixes ? thread_ : 0)) * chunk_width;
    const T* const from = kept_address(rows_.at(copies ? lane_ : 0, position_) +
                                       first_chunk_ * std::int64_t{chunk_width});
    const float* const query = kept_address(static_cast<const float*>(p_.query.data) + column);
    const float* const norm_weight =
        kept_address(static_cast<const float*>(p_.norm_weight.data) + column);
    T* const y =
        kept_address(static_cast<T*>(p_.y.data) + position_ * p_.y.position_stride + column);
    accumulate reciprocal = reciprocal_width<accumulate>(p_.tree.width);
    // Found here, not where it is used.
    asm volatile("" : "+f"(reciprocal));
    cluster::wait();
    wait_for_dependencies();
    release_dependents();

    if (copies) {
      arrival.expect(chunks * 16);
      copy_bulk(block_.rows + lane_ * chunks_ * 16, from, chunks * 16, arrival);
    }
    if (mixes) { fold(query, norm_weight, folds); }
    __syncthreads();
    if (set < sets) { sum_rows(set, sets, chunk); }
    if (warp_ == 0) {
      block_.mailbox->wait();
      find_steps(reciprocal);
    }
    // Rows and steps are there to be read.
    __syncthreads();
    if (mixes) { mix(y); }
  }

private:
  __device__ __forceinline__ void fold(const float* query, const float* norm_weight,
                                       bool folds) const
  {
    float4 weights[static_cast<std::size_t>(quads)];
    float4 factors[static_cast<std::size_t>(quads)];
#pragma unroll
    for (int quad = 0; quad < quads; ++quad) {
      weights[quad] = reinterpret_cast<const float4*>(query)[quad];
      factors[quad] = make_float4(1, 1, 1, 1);
      if (folds) { factors[quad] = reinterpret_cast<const float4*>(norm_weight)[quad]; }
    }
#pragma unroll
    for (int quad = 0; quad < quads; ++quad) {
      block_.weights[quad * chunks_ + thread_] = fold_quad(weights[quad], factors[quad], p_.scale);
    }
  }
  [[nodiscard]] __device__ __forceinline__ words row_words(int row, int chunk) const
  {
    return thread::load_vector(
        reinterpret_cast<const std::uint32_t*>(block_.rows + (row * chunks_ + chunk) * 16));
  }
  //! Every sets-th row over the warp's unit goes to both blocks.
  __device__ __forceinline__ void sum_rows(int first, int sets, int chunk) const
  {
    values weights[static_cast<std::size_t>(Depth)];
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
      weights[place] = load_folded<T>(block_.weights + chunk + place * 32, chunks_);
    }
    accumulate* const place_of_span =
        block_.sums + 2 * ((first_chunk_ + chunk) >> p_.tree.span_shift);
#pragma unroll 1
    for (int row = first; row < p_.num_rows; row += sets) {
      copy_barrier{block_.barriers + row}.wait(0);
      key_sums<accumulate> of_lane;
#pragma unroll
      for (int place = 0; place < Depth; ++place) {
        key_sums<accumulate> of_chunk;
        multiply_key(of_chunk, weights[place], widen_words<T>(row_words(row, chunk + place * 32)));
        of_lane.product = place == 0 ? of_chunk.product : of_lane.product + of_chunk.product;
        of_lane.square = place == 0 ? of_chunk.square : of_lane.square + of_chunk.square;
      }
      send_row_sums(of_lane, *block_.mailbox, place_of_span + row * decode_stride);
    }
  }
  __device__ __forceinline__ void find_steps(accumulate reciprocal) const
  {
    const prefix_step<accumulate> found =
        step_of_lane(logit_of_lane(p_, rows_, position_, block_.sums, reciprocal), p_.num_rows);
    if (lane_ < p_.num_rows) { block_.steps[lane_] = found.step; }
    // The first one rescales a mix of zeros.
    const bool rescales = lane_ > 0 && found.step.rescale != accumulate{1};
    const unsigned all = __ballot_sync(full_warp, rescales && lane_ < p_.num_rows);
    if (lane_ == 0) { *block_.rescales = all; }
    __syncwarp();
    if (cluster::rank() == 0 && p_.lse != nullptr) {
      store_lse(p_, position_, block_.steps, found.maximum);
    }
  }
  //! Eq. 5.
  __device__ __forceinline__ void mix(T* y) const
  {
    values mixed{};
    accumulate sum = 0;
    unsigned rescales = *block_.rescales;
#pragma unroll 1
    for (int first = 0; first < p_.num_rows; first += rows_at_once) {
      words held[static_cast<std::size_t>(rows_at_once)];
      step steps[static_cast<std::size_t>(rows_at_once)];
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k) {
        const int row = first + k < p_.num_rows ? first + k : first;
        held[k] = row_words(row, thread_);
        steps[k] = block_.steps[row];
      }
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k) {
        if (first + k >= p_.num_rows) { break; }
        sum = thread::multiply_add(sum, steps[k].rescale, steps[k].weight);
        // A factor of 1 changes nothing, and it is what most rows after the first few have.
        if ((rescales & 1u) != 0) {
          // Volatile, so that the branch around it stays one.
          asm volatile("");
#pragma unroll
          for (int c = 0; c < chunk_width; ++c) { mixed[c] *= steps[k].rescale; }
        }
        rescales >>= 1;
        const values s = widen_words<T>(held[k]);
#pragma unroll
        for (int c = 0; c < chunk_width; ++c) {
          mixed[c] = thread::multiply_add(steps[k].weight, s[c], mixed[c]);
        }
      }
    }
    thread::softmax_state<accumulate> state;
    state.sum = sum;
    const accumulate normalizer = state.normalizer();
#pragma unroll
    for (int c = 0; c < chunk_width; ++c) { mixed[c] *= normalizer; }
    store_accesses(y, mixed);
  }

  const route_parameters<T>& p_;
  const row_pointers<T, Capacity>& rows_;
  int thread_;
  int lane_;
  int warp_;
  int warps_;
  int chunks_;
  int first_chunk_;
  std::int64_t position_;
  block_type block_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
