// SPDX-License-Identifier: Apache-2.0
//! The forward of one position by a cluster of blocks where a call has one head and nothing unusual: as few instructions as it
//! takes, since each is run once and has to be fetched.
#pragma once

#include <mhar/block/detail/decode_sums.cuh>
#include <mhar/block/detail/dependency.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How a block of route_decode is cut and lies in shared memory.
template <class T>
struct decode_block
{
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;

  static constexpr int max_rows = decode_rows;
  static constexpr int max_spans = decode_spans;
  //! Mixed together.
  static constexpr int rows_at_once = 5;
  static constexpr int max_steps = (max_rows + rows_at_once - 1) / rows_at_once * rows_at_once;
  static constexpr int max_warps = 18;
  //! Threads that mix one chunk together.
  static constexpr int threads_per_chunk = 2;
  //! Sixteen bytes of parameters.
  static constexpr int quads_per_chunk = thread::chunk_width<T> / 4;

  cluster_mailbox* mailbox;
  accumulate*
      sums;     //!< [rows][decode_stride]: of all columns, <w, s> and s^2 of each span, then zeros
  step* steps;  //!< [warps][max_steps]
  float4* weights;  //!< [quads_per_chunk][chunks]: the folded query
  char* rows;       //!< [rows][chunks], 16 bytes each

  [[nodiscard]] static constexpr std::size_t bytes(int rows, int chunks, int warps) noexcept
  {
    const int floats = rows * decode_stride + warps * max_steps * 2;
    return static_cast<std::size_t>(16 + 4 * floats + (quads_per_chunk + rows) * chunks * 16);
  }
  [[nodiscard]] __device__ __forceinline__ static decode_block carve(char* memory, int rows,
                                                                     int chunks, int warps)
  {
    decode_block b;
    b.mailbox = reinterpret_cast<cluster_mailbox*>(memory);
    b.sums = reinterpret_cast<accumulate*>(memory + 16);
    b.steps = reinterpret_cast<step*>(b.sums + rows * decode_stride);
    b.weights = reinterpret_cast<float4*>(b.steps + warps * max_steps);
    b.rows = reinterpret_cast<char*>(b.weights + quads_per_chunk * chunks);
    return b;
  }
};

//! One head, spans of whole warps, parameters of aligned floats, y of T and lse.
template <class T, int Depth, int Capacity>
class route_decode
{
public:
  using accumulate = accumulate_t<T>;
  using block_type = decode_block<T>;
  using step = typename block_type::step;
  using words = thread::vector<std::uint32_t>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  static constexpr int quads = block_type::quads_per_chunk;
  static constexpr int rows_at_once = block_type::rows_at_once;
  //! Columns that a thread mixes.
  static constexpr int part_width = chunk_width / block_type::threads_per_chunk;
  static constexpr int part_bytes = 16 / block_type::threads_per_chunk;
  using part = thread::vector<accumulate, part_width>;
  using part_words = thread::vector<std::uint32_t, part_bytes / 4>;

  //! `units` of 32*Depth chunks are this block's; the last block may have fewer.
  __device__ __forceinline__ route_decode(const route_parameters<T>& p,
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
        block_{block_type::carve(memory, p.num_rows, chunks_, warps_)}
  {
  }

  __device__ __forceinline__ void operator()()
  {
    if (thread_ == 0) { block_.mailbox->open(2 * p_.num_rows * p_.tree.num_spans); }
    // The other blocks have to run before anything is sent to them.
    cluster::arrive_without_order();
    clear_absent_spans(block_.sums, p_.num_rows, p_.tree.num_spans, warp_, warps_);
    // Every chunk of the block, or of the row.
    const int left = p_.tree.num_chunks - first_chunk_;
    const int chunks = chunks_ < left ? chunks_ : left;
    const int units = chunks / (32 * Depth);
    const int num_tasks = p_.num_rows * units;
    const bool folds = static_cast<bool>(p_.norm_weight);
    const bool holds_query = thread_ < chunks * quads;
    const int query_column = first_chunk_ * chunk_width + 4 * (holds_query ? thread_ : 0);
    const float* const query =
        kept_address(static_cast<const float*>(p_.query.data) + query_column);
    const float* const norm_weight =
        kept_address(static_cast<const float*>(p_.norm_weight.data) + query_column);
    float4* const weight_place = block_.weights + thread_ % quads * chunks_ + thread_ / quads;
    int task = warp_;
    int row = task / units;
    int unit = task - row * units;
    const T* const from = kept_address(row_of(row < p_.num_rows ? row : 0, unit));
    const int mixing_warps = units * Depth * block_type::threads_per_chunk;
    T* const y = static_cast<T*>(p_.y.data) + position_ * p_.y.position_stride +
                 first_chunk_ * chunk_width + thread_ * part_width;
    accumulate reciprocal = reciprocal_width<accumulate>(p_.tree.width);
    // Found here, not where it is used.
    asm volatile("" : "+f"(reciprocal));
    cluster::wait();
    wait_for_dependencies();
    release_dependents();

    words raw[static_cast<std::size_t>(Depth)];
    words next[static_cast<std::size_t>(Depth)];
    const bool sums = task < num_tasks;
    if (sums) { load(raw, from); }
    if (holds_query) {
      const float4 weight = *reinterpret_cast<const float4*>(query);
      float4 factor = make_float4(1, 1, 1, 1);
      if (folds) { factor = *reinterpret_cast<const float4*>(norm_weight); }
      *weight_place = fold_quad(weight, factor, p_.scale);
    }
    __syncthreads();
    if (sums) {
#pragma unroll 1
      while (true) {
        task += warps_;
        const bool goes_on = task < num_tasks;
        int next_row = 0;
        int next_unit = 0;
        if (goes_on) {
          next_row = task / units;
          next_unit = task - next_row * units;
          load(next, row_of(next_row, next_unit));
        }
        sum(raw, row, unit);
        if (!goes_on) { break; }
        row = next_row;
        unit = next_unit;
#pragma unroll
        for (int place = 0; place < Depth; ++place) { raw[place] = next[place]; }
      }
    }
    // Rows are there to be read.
    __syncthreads();
    block_.mailbox->wait();
    if (warp_ >= mixing_warps) { return; }

    const prefix_step<accumulate> found = step_of_lane(
        logit_of_lane(p_, rows_, position_, p_.num_rows, block_.sums, reciprocal), p_.num_rows);
    step* const steps = block_.steps + warp_ * block_type::max_steps;
    // What stands for a row that does not exist: times 1, plus -0 times zeros, changes no bit of a mix.
    if (lane_ < block_type::max_steps) {
      steps[lane_] = lane_ < p_.num_rows ? found.step : step{accumulate{1}, -accumulate{0}};
    }
    __syncwarp();
    thread::softmax_state<accumulate> state;
    state.maximum = __shfl_sync(full_warp, found.maximum, p_.num_rows - 1);
    part mix{};
    const char* from_here = block_.rows + thread_ * part_bytes;
#pragma unroll 1
    for (int first = 0; first < p_.num_rows; first += rows_at_once) {
      part_words held[static_cast<std::size_t>(rows_at_once)];
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k) {
        held[k] = {};
        if (first + k < p_.num_rows) {
          held[k] = thread::load_vector<std::uint32_t, part_bytes / 4>(
              reinterpret_cast<const std::uint32_t*>(from_here));
        }
        from_here += chunks_ * 16;
      }
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k) {
        const step next = steps[first + k];
        const part s = widen_words<T>(held[k]);
        state.sum = thread::multiply_add(state.sum, next.rescale, next.weight);
#pragma unroll
        for (int c = 0; c < part_width; ++c) {
          // A factor of 1 changes no bit.
          mix[c] = thread::multiply_add(next.weight, s[c], mix[c] * next.rescale);
        }
      }
    }
    const accumulate normalizer = state.normalizer();
#pragma unroll
    for (int c = 0; c < part_width; ++c) { mix[c] *= normalizer; }
    store_accesses(y, mix);
    if (thread_ == 0 && cluster::rank() == 0 && p_.lse != nullptr) {
      p_.lse[position_] = state.log_sum_exp();
    }
  }

private:
  [[nodiscard]] __device__ __forceinline__ const T* row_of(int row, int unit) const
  {
    return rows_.at(row, position_) +
           (first_chunk_ + unit * Depth * 32 + lane_) * std::int64_t{chunk_width};
  }
  static __device__ __forceinline__ void load(words (&raw)[static_cast<std::size_t>(Depth)],
                                              const T* from)
  {
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
      raw[place] = thread::load_vector(
          reinterpret_cast<const std::uint32_t*>(from + place * 32 * chunk_width));
    }
  }
  //! The sums of a row over a unit go to all blocks; the row is left in shared memory.
  __device__ __forceinline__ void sum(const words (&raw)[static_cast<std::size_t>(Depth)], int row,
                                      int unit) const
  {
    const int chunk = unit * Depth * 32 + lane_;
    key_sums<accumulate> of_lane;
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
      const auto weights = load_folded<T>(block_.weights + chunk + place * 32, chunks_);
      key_sums<accumulate> of_chunk;
      multiply_key(of_chunk, weights, widen_words<T>(raw[place]));
      of_lane.product = place == 0 ? of_chunk.product : of_lane.product + of_chunk.product;
      of_lane.square = place == 0 ? of_chunk.square : of_lane.square + of_chunk.square;
      thread::store_vector(
          reinterpret_cast<std::uint32_t*>(block_.rows + (row * chunks_ + chunk + place * 32) * 16),
          raw[place]);
    }
    send_row_sums(
        of_lane, *block_.mailbox,
        block_.sums + row * decode_stride + 2 * ((first_chunk_ + chunk) >> p_.tree.span_shift));
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
