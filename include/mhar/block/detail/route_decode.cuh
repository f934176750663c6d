// SPDX-License-Identifier: Apache-2.0
//! The forward of one position by a cluster of blocks where a call has nothing unusual: as few instructions as it takes, since
//! each is run once and has to be fetched.
#pragma once

#include <mhar/block/detail/decode_head_sums.cuh>
#include <mhar/block/detail/decode_sums.cuh>
#include <mhar/block/detail/dependency.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How a block of route_decode is cut and lies in shared memory. `Sums` is one_head_sums or few_heads_sums.
template <class T, class Sums>
struct decode_block
{
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;

  static constexpr int max_rows = decode_rows;
  static constexpr int max_spans = decode_spans;
  //! Mixed together.
  static constexpr int rows_at_once = 5;
  static constexpr int max_steps = (max_rows + rows_at_once - 1) / rows_at_once * rows_at_once;
  //! That mix one chunk together, in a block of so many: where it has few, one each would leave schedulers without work; where it
  //! has more, all warps that mix find the same steps.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int threads_per_chunk(int chunks) noexcept
  {
    return chunks <= 64 ? 2 : 1;
  }
  static constexpr int steps_per_warp = Sums::heads_per_warp * max_steps;
  //! Sixteen bytes of parameters.
  static constexpr int quads_per_chunk = thread::chunk_width<T> / 4;

  cluster_mailbox* mailbox;
  accumulate* sums;  //!< [rows][Sums::stride]: of all columns
  step* steps;       //!< [warps][heads_per_warp][max_steps]
  float4* weights;   //!< [quads_per_chunk][chunks]: the folded query
  char* rows;        //!< [rows][chunks], 16 bytes each

  [[nodiscard]] static constexpr std::size_t bytes(int rows, int chunks, int warps) noexcept
  {
    const int floats = rows * Sums::stride + warps * steps_per_warp * 2;
    return static_cast<std::size_t>(16 + 4 * floats + (quads_per_chunk + rows) * chunks * 16);
  }
  [[nodiscard]] __device__ __forceinline__ static decode_block carve(char* memory, int rows,
                                                                     int chunks, int warps)
  {
    decode_block b;
    b.mailbox = reinterpret_cast<cluster_mailbox*>(memory);
    b.sums = reinterpret_cast<accumulate*>(memory + 16);
    b.steps = reinterpret_cast<step*>(b.sums + rows * Sums::stride);
    b.weights = reinterpret_cast<float4*>(b.steps + warps * steps_per_warp);
    b.rows = reinterpret_cast<char*>(b.weights + quads_per_chunk * chunks);
    return b;
  }
};

//! Heads of whole groups of 16 chunks, parameters of aligned floats, y of T and lse.
template <class T, int Depth, int Capacity, class Sums>
class route_decode
{
public:
  using accumulate = accumulate_t<T>;
  using block_type = decode_block<T, Sums>;
  using step = typename block_type::step;
  using words = thread::vector<std::uint32_t>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  static constexpr int quads = block_type::quads_per_chunk;
  static constexpr int rows_at_once = block_type::rows_at_once;
  //! A task is a unit of some rows.
  static constexpr int rows_per_task = Sums::rows_per_task(Depth);
  struct task_words
  {
    words of[static_cast<std::size_t>(rows_per_task)][static_cast<std::size_t>(Depth)];
  };

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
    // Every chunk of the block, or of the row.
    const int left = p_.tree.num_chunks - first_chunk_;
    const int chunks = chunks_ < left ? chunks_ : left;
    if (thread_ == 0) {
      block_.mailbox->open(p_.num_rows *
                           Sums::values_per_row(p_.tree, first_chunk_, first_chunk_ + chunks - 1));
    }
    // The other blocks have to run before anything is sent to them.
    cluster::arrive_without_order();
    Sums::clear_absent_spans(block_.sums, p_.num_rows, p_.tree.num_spans, warp_, warps_);
    const int units = chunks / (32 * Depth);
    const int num_tasks = (p_.num_rows + rows_per_task - 1) / rows_per_task * units;
    const bool folds = static_cast<bool>(p_.norm_weight);
    const bool holds_query = thread_ < chunks * quads;
    const int query_column = first_chunk_ * chunk_width + 4 * (holds_query ? thread_ : 0);
    const float* const query =
        kept_address(static_cast<const float*>(p_.query.data) + query_column);
    const float* const norm_weight =
        kept_address(static_cast<const float*>(p_.norm_weight.data) + query_column);
    float4* const weight_place = block_.weights + thread_ % quads * chunks_ + thread_ / quads;
    int task = warp_;
    int batch = task / units;
    int unit = task - batch * units;
    const T* from[static_cast<std::size_t>(rows_per_task)];
#pragma unroll
    for (int k = 0; k < rows_per_task; ++k) {
      const int row = batch * rows_per_task + k;
      from[k] = kept_address(row_of(row < p_.num_rows ? row : 0, unit));
    }
    unsigned receivers = Sums::receivers(p_.tree, chunk_of(unit), chunks_);
    const int sharers = block_type::threads_per_chunk(chunks_);
    int mixing_warps = units * Depth * sharers;
    // That of the columns that the lane mixes.
    const int head = Sums::head_of(p_.tree, first_chunk_ + thread_ / sharers);
    const bool begins = (first_chunk_ - head * p_.tree.chunks_per_head) * sharers + thread_ == 0;
    accumulate reciprocal = reciprocal_width<accumulate>(p_.tree.width);
    // Found here, not where it is used.
    asm volatile("" : "+f"(reciprocal), "+r"(mixing_warps));
    cluster::wait();
    wait_for_dependencies();
    release_dependents();

    task_words raw;
    task_words next;
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
        int next_batch = 0;
        int next_unit = 0;
        if (goes_on) {
          next_batch = task / units;
          next_unit = task - next_batch * units;
#pragma unroll
          for (int k = 0; k < rows_per_task; ++k) {
            const int row = next_batch * rows_per_task + k;
            from[k] = row_of(row < p_.num_rows ? row : 0, next_unit);
          }
          load(next, from);
        }
        sum(raw, batch * rows_per_task, unit, receivers);
        if (!goes_on) { break; }
        batch = next_batch;
        unit = next_unit;
        receivers = Sums::receivers(p_.tree, chunk_of(unit), chunks_);
        raw = next;
      }
    }
    // Rows are there to be read.
    __syncthreads();
    block_.mailbox->wait();
    if (warp_ >= mixing_warps) { return; }

    const prefix_step<accumulate> found =
        Sums::step_of_lane(Sums::template logit_of_lane<T>(p_, rows_, position_, p_.num_rows,
                                                           block_.sums, reciprocal, head),
                           p_.num_rows);
    // Lanes of each head of the warp.
    constexpr int lanes = 32 / Sums::heads_per_warp;
    const int source = lane_ & (lanes - 1);
    step* const steps =
        block_.steps + warp_ * block_type::steps_per_warp + lane_ / lanes * block_type::max_steps;
    // What stands for a row that does not exist: times 1, plus -0 times zeros, changes no bit of a mix.
    if (source < block_type::max_steps) {
      steps[source] = source < p_.num_rows ? found.step : step{accumulate{1}, -accumulate{0}};
    }
    if (lanes < block_type::max_steps && source + lanes < block_type::max_steps) {
      steps[source + lanes] = {accumulate{1}, -accumulate{0}};
    }
    __syncwarp();
    thread::softmax_state<accumulate> state;
    state.maximum = __shfl_sync(full_warp, found.maximum, p_.num_rows - 1, lanes);
    T* const y = static_cast<T*>(p_.y.data) + position_ * p_.y.position_stride +
                 first_chunk_ * chunk_width + thread_ * (chunk_width / sharers);
    if (sharers == 1) { mix<chunk_width>(y, steps, state); }
    else {
      mix<chunk_width / 2>(y, steps, state);
    }
    if (begins && p_.lse != nullptr) {
      p_.lse[position_ * p_.tree.num_heads + head] = state.log_sum_exp();
    }
  }

private:
  //! The lane's first one of a unit.
  [[nodiscard]] __device__ __forceinline__ int chunk_of(int unit) const
  {
    return first_chunk_ + unit * Depth * 32 + lane_;
  }
  [[nodiscard]] __device__ __forceinline__ const T* row_of(int row, int unit) const
  {
    return rows_.at(row, position_) + chunk_of(unit) * std::int64_t{chunk_width};
  }
  static __device__ __forceinline__ void load(
      task_words& raw, const T* const (&from)[static_cast<std::size_t>(rows_per_task)])
  {
#pragma unroll
    for (int k = 0; k < rows_per_task; ++k) {
#pragma unroll
      for (int place = 0; place < Depth; ++place) {
        raw.of[k][place] = thread::load_vector(
            reinterpret_cast<const std::uint32_t*>(from[k] + place * 32 * chunk_width));
      }
    }
  }
  //! The sums of a task's rows, from `row` on, go to all blocks; the rows are left in shared memory.
  __device__ __forceinline__ void sum(const task_words& raw, int row, int unit,
                                      unsigned receivers) const
  {
    const int chunk = unit * Depth * 32 + lane_;
    const int left = p_.num_rows - row;
    key_sums<accumulate> of_lane[static_cast<std::size_t>(rows_per_task)];
#pragma unroll
    for (int place = 0; place < Depth; ++place) {
      const auto weights = load_folded<T>(block_.weights + chunk + place * 32, chunks_);
#pragma unroll
      for (int k = 0; k < rows_per_task; ++k) {
        key_sums<accumulate> of_chunk;
        multiply_key(of_chunk, weights, widen_words<T>(raw.of[k][place]));
        key_sums<accumulate>& sums = of_lane[k];
        sums.product = place == 0 ? of_chunk.product : sums.product + of_chunk.product;
        sums.square = place == 0 ? of_chunk.square : sums.square + of_chunk.square;
        char* const to = block_.rows + ((row + k) * chunks_ + chunk + place * 32) * 16;
        if (rows_per_task == 1 || k < left) {
          thread::store_vector(reinterpret_cast<std::uint32_t*>(to), raw.of[k][place]);
        }
      }
    }
    Sums::send(of_lane, left, *block_.mailbox, block_.sums + row * Sums::stride, p_.tree,
               first_chunk_ + chunk, receivers);
  }
  //! Eq. 5 for the thread's `Width` columns.
  template <int Width>
  __device__ __forceinline__ void mix(T* y, const step* steps,
                                      thread::softmax_state<accumulate>& state) const
  {
    constexpr int num_words = Width * static_cast<int>(sizeof(T)) / 4;
    using part = thread::vector<accumulate, Width>;
    part mixed{};
    const char* from = block_.rows + thread_ * num_words * 4;
#pragma unroll 1
    for (int first = 0; first < p_.num_rows; first += rows_at_once) {
      thread::vector<std::uint32_t, num_words> held[static_cast<std::size_t>(rows_at_once)];
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k) {
        held[k] = {};
        if (first + k < p_.num_rows) {
          held[k] = thread::load_vector<std::uint32_t, num_words>(
              reinterpret_cast<const std::uint32_t*>(from));
        }
        from += chunks_ * 16;
      }
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k) {
        const step next = steps[first + k];
        const part s = widen_words<T>(held[k]);
        state.sum = thread::multiply_add(state.sum, next.rescale, next.weight);
#pragma unroll
        for (int c = 0; c < Width; ++c) {
          // A factor of 1 changes no bit.
          mixed[c] = thread::multiply_add(next.weight, s[c], mixed[c] * next.rescale);
        }
      }
    }
    const accumulate normalizer = state.normalizer();
#pragma unroll
    for (int c = 0; c < Width; ++c) { mixed[c] *= normalizer; }
    store_accesses(y, mixed);
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
