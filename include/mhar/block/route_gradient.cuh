// SPDX-License-Identifier: Apache-2.0
//! The backward of a routing call as one thread block computes it, position after position
//! (docs/operator.md, eq. 9 to 17).
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/columns.cuh>
#include <mhar/block/detail/gradient_columns.cuh>
#include <mhar/block/detail/gradient_sums.cuh>
#include <mhar/block/route_gradient_params.cuh>
#include <mhar/thread/inverse_rms.hpp>
#include <mhar/thread/softmax_state.hpp>

#include <cuda/std/limits>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Gradients of a contiguous range of chunks of positions.
//!
//! A thread owns the same columns of every row. For each batch of rows of a position
//!   1. every thread adds <w, s>, <do, s>, <s, s> over its columns, and lanes add theirs (barrier)
//!   2. a few lanes finish the sums and turn them into the three factors of ds           (barrier)
//!   3. every thread forms ds = a do + b w + c s in its columns, and adds b s to its share of dw.
//! Sums over positions stay with the thread that owns the column until a chunk ends, and are
//! written then.
//!
//! Chunks > 0: a thread owns that many 16-byte chunks, keeps w, do and dw of them in registers, and
//! rows pass through a ring in shared memory filled by asynchronous copies. A thread reads only
//! what it copied itself, so the ring needs no barrier. Chunks == 0: any shape and alignment;
//! everything a thread owns is in the arena, and rows are read where they are.
//!
//! Threads      all of the block, map.num_threads
//! Barriers     two per batch of rows; two more per position with an output norm; three per batch
//!              that recomputes
//! Shared       params.ring_bytes + the arena (unless it is in global memory)
//! Numerics     accumulate_t<T>; the order of every sum is fixed by the shape; no atomics
template <class T, int Chunks, int Capacity>
class route_gradient
{
public:
  using params = route_gradient_params<T, Capacity>;
  using accumulate = accumulate_t<T>;

  __device__ __forceinline__ route_gradient(const params& call, unsigned char* shared);

  //! Positions of chunks [first_chunk, last_chunk); their partial sums are written.
  __device__ __forceinline__ void run(int first_chunk, int last_chunk);

private:
  static constexpr int width = thread::chunk_width<T>;
  static constexpr bool has_ring = Chunks > 0;
  using values = thread::vector<accumulate, width>;
  using columns = detail::owned_columns<accumulate, width, Chunks>;
  using memory = detail::memory_chunks<accumulate, width>;

  // Columns (detail/route_gradient_columns.cuh).
  [[nodiscard]] __device__ __forceinline__ int num_rounds() const;
  [[nodiscard]] __device__ __forceinline__ int head_of(int round) const;
  [[nodiscard]] __device__ __forceinline__ int group_of(int round) const;
  template <class Visitor>
  __device__ __forceinline__ void for_columns(int round, Visitor visitor) const;
  [[nodiscard]] __device__ __forceinline__ const const_matrix& matrix_of(call_input which) const;
  [[nodiscard]] __device__ __forceinline__ values input_values(call_input which,
                                                               std::int64_t position,
                                                               std::int64_t column,
                                                               int count) const;
  template <std::size_t Count>
  __device__ __forceinline__ void store_groups(accumulate (&sums)[Count], int round,
                                               accumulate* groups, int stride) const;
  template <int Rows>
  __device__ __forceinline__ void store_row_sums(const thread::vector<accumulate, 4 * Rows>& sums,
                                                 int round, accumulate* parts) const;
  [[nodiscard]] __device__ __forceinline__ values load(const void* from, element type,
                                                       std::int64_t index, int count) const;
  [[nodiscard]] __device__ __forceinline__ values load(const const_matrix& from,
                                                       std::int64_t position, std::int64_t column,
                                                       int count) const;
  [[nodiscard]] __device__ __forceinline__ values load(const const_array& from, std::int64_t column,
                                                       int count, accumulate absent) const;

  // Asked of the parameters each time, as constants: registers are scarce.
  [[nodiscard]] __device__ __forceinline__ bool recomputes() const
  {
    return call_.lse == nullptr || !call_.mix;
  }
  //! Rows stay in the ring between recomputation and gradient.
  [[nodiscard]] __device__ __forceinline__ bool keeps_rows() const
  {
    return recomputes() && num_batches_ == 1;
  }
  [[nodiscard]] __device__ __forceinline__ bool wants_weight() const
  {
    return call_.partials.query != nullptr;
  }
  //! Rounded keys are left to the kernels without a ring.
  [[nodiscard]] __device__ __forceinline__ bool rounds_keys() const
  {
    return !has_ring && call_.rounding != key_rounding::none;
  }

  // The ring (detail/route_gradient_ring.cuh).
  [[nodiscard]] __device__ __forceinline__ int rows_in(int batch) const;
  __device__ __forceinline__ void start_ring(std::int64_t first, std::int64_t last);
  __device__ __forceinline__ void copy_step() const;
  __device__ __forceinline__ void copy_old_gradients(int first, int rows) const;
  template <class Element>
  __device__ __forceinline__ void copy_chunks(Element* to, const Element* from) const;
  __device__ __forceinline__ void copy_plain_input(const const_matrix& from, call_input which,
                                                   std::int64_t position) const;
  __device__ __forceinline__ void copy_inputs(std::int64_t position);
  __device__ __forceinline__ void close_step();
  __device__ __forceinline__ void wait_for_inputs() const;
  __device__ __forceinline__ void wait_for_rows() const;
  [[nodiscard]] __device__ __forceinline__ accumulate* statistics_of(std::int64_t position) const;
  [[nodiscard]] __device__ __forceinline__ unsigned char* input_memory(call_input which) const
  {
    return ring_ + call_.input_offsets[static_cast<int>(which)];
  }
  [[nodiscard]] __device__ __forceinline__ unsigned char* slot_memory(int slot) const
  {
    return ring_ + call_.input_bytes + (stage_ * call_.rows_per_stage + slot) * call_.slot_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ values row_values(int slot, int row,
                                                             std::int64_t position, int chunk,
                                                             std::int64_t column, int count) const;

  // A chunk of positions (detail/route_gradient_chunk.cuh).
  __device__ __forceinline__ void fold_weight();
  [[nodiscard]] __device__ __forceinline__ accumulate large_null_inverse() const;
  __device__ __forceinline__ void score_null();
  __device__ __forceinline__ void flush(int chunk);

  // A position before its rows (detail/route_gradient_position.cuh).
  [[nodiscard]] __device__ __forceinline__ values mix_values(std::int64_t position, int chunk,
                                                             std::int64_t column, int count) const;
  [[nodiscard]] __device__ __forceinline__ values combined_values(std::int64_t position, int chunk,
                                                                  std::int64_t column,
                                                                  int count) const;
  __device__ __forceinline__ void differentiate_norm(std::int64_t position);
  //! do is dy, and nothing but D is to be found.
  [[nodiscard]] __device__ __forceinline__ bool starts_plainly() const;
  __device__ __forceinline__ void start_plain_position();
  __device__ __forceinline__ void start_position(std::int64_t position);
  __device__ __forceinline__ void finish_position(std::int64_t position);

  // From sums to factors (detail/route_gradient_finish.cuh).
  [[nodiscard]] __device__ __forceinline__ accumulate lse_of(std::int64_t position, int head) const;
  [[nodiscard]] __device__ __forceinline__ accumulate
  large_row_inverse(int row, std::int64_t position) const;
  [[nodiscard]] __device__ __forceinline__ accumulate
  squares_of_later_heads(const accumulate* groups, int first, int sub) const;
  [[nodiscard]] __device__ __forceinline__ accumulate inverse_of(int slot, int row,
                                                                 std::int64_t position) const;
  [[nodiscard]] __device__ __forceinline__ accumulate weight_of(accumulate logit,
                                                                accumulate lse) const;
  [[nodiscard]] __device__ __forceinline__ accumulate mix_weight_of(accumulate logit,
                                                                    accumulate lse) const;
  [[nodiscard]] __device__ __forceinline__ accumulate given_inverse(int row,
                                                                    std::int64_t position) const;
  __device__ __forceinline__ bool finish_rows(int batch, std::int64_t position);
  __device__ __forceinline__ bool finish_segment(int batch, int first_slot, int slot,
                                                 std::int64_t position);

  // Sums and gradients of rows (detail/route_gradient_rows.cuh).
  [[nodiscard]] __device__ __forceinline__ accumulate key_product(const values& key,
                                                                  const values& weight,
                                                                  std::int64_t column,
                                                                  int count) const;
  __device__ __forceinline__ void find_inverses(int batch, std::int64_t position);
  template <int Rows>
  __device__ __forceinline__ void sum_rows(int first_slot, int first_row, std::int64_t position);
  __device__ __forceinline__ void sum_batch(int batch, std::int64_t position);
  [[nodiscard]] static __device__ __forceinline__ values held_values(const T* from)
  {
    return thread::widen_all<accumulate>(thread::load_vector(from));
  }
  //! Only where the rows' type is another.
  template <class Wide = accumulate>
  [[nodiscard]] static __device__ __forceinline__
      cuda::std::enable_if_t<!cuda::std::is_same_v<Wide, T>, values>
      held_values(const Wide* from)
  {
    return detail::load_wide<accumulate, width>(from);
  }
  template <class Element>
  __device__ __forceinline__ void differentiate_held(int first, int rows, std::int64_t position);
  __device__ __forceinline__ void differentiate_non_finite(int first, int rows,
                                                           std::int64_t position);
  __device__ __forceinline__ void differentiate_row(int slot, int row, std::int64_t position);
  __device__ __forceinline__ void differentiate_slots(int first, int rows, std::int64_t position);
  __device__ __forceinline__ void differentiate_batch(int batch, bool finite,
                                                      std::int64_t position);
  __device__ __forceinline__ void differentiate(std::int64_t position);

  // lse and mix again (detail/route_gradient_recompute.cuh).
  __device__ __forceinline__ void finish_logits(int slot, int row, std::int64_t position);
  __device__ __forceinline__ void advance_heads(int batch, std::int64_t position);
  __device__ __forceinline__ void start_mix(std::int64_t position);
  __device__ __forceinline__ void recompute(std::int64_t position);

  [[nodiscard]] __device__ __forceinline__ accumulate* column_memory(column_array which) const
  {
    return arena_ + call_.arena.columns[static_cast<int>(which)];
  }
  [[nodiscard]] __device__ __forceinline__ accumulate* head_memory(int offset, int which) const
  {
    return arena_ + offset + which * call_.extent.num_heads;
  }
  //! Values of the arena's `scalars`.
  enum scalar
  {
    norm_inverse,
    norm_projection,
    null_inverse,
    gate_sum
  };
  [[nodiscard]] __device__ __forceinline__ accumulate* parts_of(int slot) const
  {
    return arena_ + call_.arena.parts + slot * 4 * call_.map.num_groups;
  }

  const params& call_;
  unsigned char* ring_;
  accumulate* arena_;
  int column_;  //!< the thread's first one, with a ring
  int step_;    //!< columns from one of its chunks to the next
  int lane_;    //!< among the threads of a head
  int head_;    //!< in the first round
  int num_batches_;
  int num_sources_;
  accumulate gate_;
  accumulate inverse_width_;

  columns weight_;      //!< w = scale * q * g
  columns gradient_;    //!< do; the mix while that is recomputed
  columns weight_sum_;  //!< sum of dl * key
  memory null_sum_;     //!< sum of alpha * a * do of the null source
  memory norm_sum_;     //!< sum of dy * o * r

  // The ring: what is copied next, and the stage it goes to, which is the one that is read.
  std::int64_t copied_position_ = 0;
  std::int64_t last_position_ = 0;
  int copied_step_ = 0;
  int num_steps_ = 1;
  int stage_ = 0;
  int closed_ = 0;       //!< steps closed since inputs were copied
  unsigned starts_ = 0;  //!< bit i: inputs were copied in the step i steps ago; bit 0 is this one
};

}  // namespace block
MHAR_NAMESPACE_END

#include <mhar/block/detail/route_gradient_chunk.cuh>
#include <mhar/block/detail/route_gradient_columns.cuh>
#include <mhar/block/detail/route_gradient_finish.cuh>
#include <mhar/block/detail/route_gradient_position.cuh>
#include <mhar/block/detail/route_gradient_recompute.cuh>
#include <mhar/block/detail/route_gradient_ring.cuh>
#include <mhar/block/detail/route_gradient_rows.cuh>
