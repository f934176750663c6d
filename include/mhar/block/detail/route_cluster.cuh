// SPDX-License-Identifier: Apache-2.0
//! The forward of one position by a cluster of blocks: every block sums its columns of all rows at once, the blocks exchange the
//! sums through their shared memory, and each finishes its own columns.
#pragma once

#include <mhar/block/detail/cluster.cuh>
#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/detail/route_finish.cuh>
#include <mhar/block/detail/route_keys.cuh>
#include <mhar/block/detail/route_stream.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Shared memory of one block of a cluster. Sources are the null source, when there is one, and the rows.
template <class T>
struct cluster_storage
{
  using accumulate = accumulate_t<T>;

  thread::softmax_step<accumulate>* steps;  //!< [sources][H]
  accumulate* products;                     //!< [sources][stride] of spans, of all columns: <w, s>
  accumulate* squares;                      //!< [sources][stride] of spans, of all columns: s^2
  accumulate* output_squares;               //!< [stride] of spans, of all columns: o^2
  accumulate* logits;                       //!< [sources][H]
  accumulate* normalizers;                  //!< [H]
  accumulate* chunk_squares;                //!< [chunks] of this block: o^2
  accumulate* weights;  //!< [chunks][chunk_width] of this block: the folded query
  char* rows;           //!< [rows][chunks], 16 bytes each
  int* reads_others;    //!< whether a block may still be read by the others when it has finished
  int stride;

  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::size_t elements(
      const thread::width_tree& tree, int sources, int chunks) noexcept
  {
    const int spans = tree.num_spans | 1;
    const int count =
        2 * sources * spans + spans + 3 * sources * tree.num_heads + tree.num_heads + chunks + 4;
    return (static_cast<std::size_t>(count) + 3) / 4 * 4;
  }
  [[nodiscard]] static constexpr std::size_t bytes(const thread::width_tree& tree, int sources,
                                                   int rows, int chunks) noexcept
  {
    return (elements(tree, sources, chunks) +
            static_cast<std::size_t>(chunks * thread::chunk_width<T>)) *
               sizeof(accumulate) +
           static_cast<std::size_t>(rows) * static_cast<std::size_t>(chunks) * 16;
  }
  [[nodiscard]] __device__ __forceinline__ static cluster_storage carve(
      char* memory, const thread::width_tree& tree, int sources, int chunks)
  {
    cluster_storage s;
    s.stride = tree.num_spans | 1;
    s.steps = reinterpret_cast<thread::softmax_step<accumulate>*>(memory);
    s.products = reinterpret_cast<accumulate*>(s.steps + sources * tree.num_heads);
    s.squares = s.products + sources * s.stride;
    s.output_squares = s.squares + sources * s.stride;
    s.logits = s.output_squares + s.stride;
    s.normalizers = s.logits + sources * tree.num_heads;
    s.chunk_squares = s.normalizers + tree.num_heads;
    s.reads_others = reinterpret_cast<int*>(s.chunk_squares + chunks);
    s.weights = reinterpret_cast<accumulate*>(memory) + elements(tree, sources, chunks);
    s.rows = reinterpret_cast<char*>(s.weights + chunks * thread::chunk_width<T>);
    return s;
  }
};

//! The whole rows, wherever in the cluster their chunks lie.
template <class T>
struct cluster_rows
{
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;

  const char* rows;
  int chunks;

  [[nodiscard]] __device__ __forceinline__ thread::vector<T> load(int k, int chunk, int, int) const
  {
    const int owner = chunk / chunks;
    const char* const place =
        rows + (static_cast<std::int64_t>(k) * chunks + (chunk - owner * chunks)) * 16;
    return thread::load_vector(reinterpret_cast<const T*>(cluster::in_block(place, owner)));
  }
};

//! Sum of squares of o over the row, as block_squares.
template <class T>
class cluster_squares
{
public:
  using accumulate = accumulate_t<T>;

  __device__ __forceinline__ cluster_squares(const route_parameters<T>& p,
                                             const cluster_storage<T>& shared, int first_chunk,
                                             int units)
      : p_{p}, shared_{shared}, first_chunk_{first_chunk}, units_{units}
  {
  }
  [[nodiscard]] __device__ __forceinline__ accumulate
  operator()(const register_columns<T, 1>& columns, accumulate scale, bool again) const
  {
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread & 31;
    if (again) { cluster::sync(); }
    if (thread < units_ * p_.tree.depth * 32) {
      shared_.chunk_squares[thread] =
          columns.valid(0) ? sum_of_squares(columns.mix(0), scale) : accumulate{0};
    }
    __syncthreads();
    for (int unit = warp_of_thread(); unit < units_; unit += static_cast<int>(blockDim.x) / 32) {
      int local = unit * p_.tree.depth * 32 + lane;
      accumulate sum = shared_.chunk_squares[local];
      for (int place = 1; place < p_.tree.depth; ++place) {
        local += 32;
        sum += shared_.chunk_squares[local];
      }
      sum = butterfly_sum(sum, p_.tree.group);
      const int chunk = first_chunk_ + local;
      if (chunk >= p_.tree.num_chunks) { continue; }
      for (int block = lane & (p_.tree.group - 1); block < cluster::size();
           block += p_.tree.group) {
        *cluster::in_block(shared_.output_squares + (chunk >> p_.tree.span_shift), block) = sum;
      }
    }
    cluster::sync();
    return sum_spans<1>(shared_.output_squares, 0, p_.tree.num_spans, lane, 32)[0];
  }

private:
  const route_parameters<T>& p_;
  const cluster_storage<T>& shared_;
  int first_chunk_;
  int units_;
};

template <class T, int Capacity>
class route_cluster
{
public:
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  //! `units` of 32*depth chunks are this block's; the last block may have fewer.
  __device__ __forceinline__ route_cluster(const route_parameters<T>& p,
                                           const row_pointers<T, Capacity>& rows, int units,
                                           char* memory)
      : p_{p},
        rows_{rows},
        units_{units},
        has_null_{p.null_source ? 1 : 0},
        num_sources_{p.num_rows + has_null_},
        chunks_{units * p.tree.depth * 32},
        first_chunk_{cluster::rank() * chunks_},
        position_{blockIdx.x / static_cast<unsigned>(cluster::size())},
        lane_{static_cast<int>(threadIdx.x) & 31},
        warp_{warp_of_thread()},
        num_warps_{static_cast<int>(blockDim.x) / 32},
        shared_{cluster_storage<T>::carve(memory, p.tree, num_sources_, chunks_)}
  {
  }

  __device__ __forceinline__ void operator()()
  {
    // The other blocks have to run before their shared memory is written; that is awaited while the rows come.
    cluster::arrive();
    if (threadIdx.x == 0) { *shared_.reads_others = 0; }
    wait_for_dependencies();
    const int thread = static_cast<int>(threadIdx.x);
    register_columns<T, 1> columns{p_, first_chunk_ + thread,
                                   thread < chunks_ && first_chunk_ + thread < p_.tree.num_chunks};
    sum_rows(columns);
    cluster::sync();
    for (int source = warp_; source < num_sources_; source += num_warps_) { find_logits(source); }
    __syncthreads();
    for (int head = warp_; head < p_.tree.num_heads; head += num_warps_) { find_steps(head); }
    __syncthreads();

    column_warps<T, 1, false> work{p_, columns};
    work.start_mix(shared_.logits);
    work.mix(shared_.rows - first_chunk_ * 16, chunks_ * 16, p_.num_rows,
             shared_.steps + has_null_ * p_.tree.num_heads);
    using squares_type = cluster_squares<T>;
    route_finish<T, register_columns<T, 1>, squares_type> finish{
        p_, columns, squares_type{p_, shared_, first_chunk_, units_}};
    finish(position_, shared_.normalizers);
    if (*shared_.reads_others != 0) { cluster::sync(); }
  }

private:
  //! Span sums of this block's columns of every source, stored in every block. A warp takes a unit of a source at a time.
  __device__ __forceinline__ void sum_rows(const register_columns<T, 1>& columns)
  {
    bool first = true;
    // All warps make the same number of rounds, since the first has a barrier in it.
    for (int task = warp_; first || task < units_ * num_sources_; task += num_warps_) {
      const bool exists = task < units_ * num_sources_;
      const int source = exists ? task / units_ : 0;
      const int unit = exists ? task - source * units_ : 0;
      const int row = source - has_null_;
      const int local = unit * p_.tree.depth * 32 + lane_;
      thread::vector<T> raw[4];
#pragma unroll
      for (int place = 0; place < 4; ++place) {
        const int chunk = first_chunk_ + local + place * 32;
        if (exists && row >= 0 && place < p_.tree.depth && chunk < p_.tree.num_chunks) {
          raw[place] = thread::load_vector(rows_.at(row, position_) + chunk * chunk_width);
        }
      }
      if (first) {
        store_weights(columns);
        cluster::wait();
        __syncthreads();
        first = false;
      }
      if (!exists) { continue; }
      key_sums<accumulate> of_lane;
      bool valid = true;
#pragma unroll
      for (int place = 0; place < 4; ++place) {
        if (place >= p_.tree.depth) { continue; }
        const int mine = local + place * 32;
        const int chunk = first_chunk_ + mine;
        valid = chunk < p_.tree.num_chunks;
        if (!valid) { continue; }
        const auto* const w = reinterpret_cast<const values*>(shared_.weights) + mine;
        key_sums<accumulate> of_chunk;
        if (row < 0) {
          of_chunk = multiply(*w, null_row<T>{p_}.load(0, 0, chunk * chunk_width, chunk_width));
        }
        else {
          if (row == p_.updated_row) { raw[place] = update(raw[place], chunk); }
          thread::store_vector(reinterpret_cast<T*>(shared_.rows + (row * chunks_ + mine) * 16),
                               raw[place]);
          of_chunk = multiply(*w, thread::widen_all<accumulate>(raw[place]));
        }
        of_lane.product = place == 0 ? of_chunk.product : of_lane.product + of_chunk.product;
        of_lane.square = place == 0 ? of_chunk.square : of_lane.square + of_chunk.square;
      }
      thread::vector<accumulate, 2> sums{{of_lane.product, of_lane.square}};
      butterfly_sums(sums, p_.tree.group);
      if (!valid) { continue; }
      const int span = (first_chunk_ + local + (p_.tree.depth - 1) * 32) >> p_.tree.span_shift;
      for (int block = lane_ & (p_.tree.group - 1); block < cluster::size();
           block += p_.tree.group) {
        *cluster::in_block(shared_.products + source * shared_.stride + span, block) = sums[0];
        *cluster::in_block(shared_.squares + source * shared_.stride + span, block) = sums[1];
      }
    }
  }
  [[nodiscard]] static __device__ __forceinline__ key_sums<accumulate> multiply(const values& w,
                                                                                const values& s)
  {
    key_sums<accumulate> sums;
#pragma unroll
    for (int c = 0; c < chunk_width; ++c) {
      sums.product = thread::multiply_add(w[c], s[c], sums.product);
      sums.square = thread::multiply_add(s[c], s[c], sums.square);
    }
    return sums;
  }
  __device__ __forceinline__ void store_weights(const register_columns<T, 1>& columns)
  {
    if (!columns.valid(0)) { return; }
    values w = load_hot_parameter<accumulate, chunk_width>(p_.query, columns.column(0), chunk_width,
                                                           accumulate{0});
    const values g = load_hot_parameter<accumulate, chunk_width>(p_.norm_weight, columns.column(0),
                                                                 chunk_width, accumulate{1});
#pragma unroll
    for (int c = 0; c < chunk_width; ++c) { w[c] = w[c] * p_.scale * g[c]; }
    reinterpret_cast<values*>(shared_.weights)[threadIdx.x] = w;
  }
  [[nodiscard]] __device__ __forceinline__ thread::vector<T> update(const thread::vector<T>& row,
                                                                    int chunk) const
  {
    const register_columns<T, 1> column{p_, chunk, true};
    return add_delta(p_, column, position_, 0, row);
  }

  //! Eq. 1 to 3 of one source.
  __device__ __forceinline__ void find_logits(int source)
  {
    const accumulate square =
        sum_spans<1>(shared_.squares + source * shared_.stride, 0, p_.tree.num_spans, lane_, 32)[0];
    accumulate inverse = quick_inverse_rms(square, p_.tree.width, p_.eps);
    if (thread::overflowed(square)) {
      accumulate scaled = 0;
      if (source >= has_null_) {
        *shared_.reads_others = 1;
        scaled =
            sum_scaled_squares(p_.tree, cluster_rows<T>{shared_.rows, chunks_}, source - has_null_);
      }
      else {
        scaled = sum_scaled_squares(p_.tree, null_row<T>{p_}, 0);
      }
      inverse = thread::scaled_inverse_rms(scaled, p_.tree.width);
    }
    if (p_.inverse_rms != nullptr && source >= has_null_ && cluster::rank() == 0 && lane_ == 0) {
      p_.inverse_rms[(source - has_null_) * p_.num_positions + position_] = inverse;
    }
    const accumulate bias =
        p_.bias ? load<accumulate>(p_.bias.data, p_.bias.type, source) : accumulate{0};
    const int lanes = 1 << p_.tree.lanes_shift;
    for (int first = 0; first < p_.tree.num_heads; first += 32 >> p_.tree.lanes_shift) {
      const int head = first + (lane_ >> p_.tree.lanes_shift);
      const bool exists = head < p_.tree.num_heads;
      const accumulate* const products =
          shared_.products + source * shared_.stride + (exists ? head : 0) * p_.tree.spans_per_head;
      const accumulate product =
          sum_spans<1>(products, 0, p_.tree.spans_per_head, lane_ & (lanes - 1), lanes)[0];
      if (exists && (lane_ & (lanes - 1)) == 0) {
        shared_.logits[source * p_.tree.num_heads + head] =
            thread::multiply_add(inverse, product, bias);
      }
    }
  }

  //! Eq. 4 of one head, lane n for source n: the steps that softmax_state::advance takes one after the other, all at once.
  __device__ __forceinline__ void find_steps(int head)
  {
    const accumulate nothing = -thread::infinity<accumulate>;
    const int num_heads = p_.tree.num_heads;
    const accumulate logit =
        lane_ < num_sources_ ? shared_.logits[lane_ * num_heads + head] : nothing;
    accumulate maximum = nothing;
    if (logit > maximum) { maximum = logit; }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const accumulate other = __shfl_up_sync(full_warp, maximum, static_cast<unsigned>(distance));
      if (lane_ >= distance && other > maximum) { maximum = other; }
    }
    accumulate before = __shfl_up_sync(full_warp, maximum, 1u);
    if (lane_ == 0) { before = nothing; }
    thread::softmax_state<accumulate> state;
    state.maximum = before;
    const step next = state.advance(logit);
    if (lane_ < num_sources_) { shared_.steps[lane_ * num_heads + head] = next; }
    __syncwarp();
    accumulate sum = 0;
#pragma unroll 8
    for (int n = 0; n < num_sources_; ++n) {
      const step each = shared_.steps[n * num_heads + head];
      sum = thread::multiply_add(sum, each.rescale, each.weight);
    }
    state.sum = sum;
    state.maximum = __shfl_sync(full_warp, maximum, 31);
    if (lane_ == 0) { shared_.normalizers[head] = state.normalizer(); }
    if (cluster::rank() != 0) { return; }
    const std::int64_t entry = position_ * num_heads + head;
    const accumulate lse = state.log_sum_exp();
    if (p_.lse != nullptr && lane_ == 0) { p_.lse[entry] = lse; }
    if (p_.weights != nullptr && lane_ < num_sources_) {
      p_.weights[entry * num_sources_ + lane_] =
          lse == nothing ? accumulate{0} : thread::exp_of(logit - lse);
    }
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
  int num_warps_;
  cluster_storage<T> shared_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
