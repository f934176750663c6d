// SPDX-License-Identifier: Apache-2.0
//! The rows of all positions of a block as a stream of batches that run ahead through shared memory.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/route_rows.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How shared memory is cut: `num_stages` stages of `rows` rows, and how many batches a position has.
struct stage_shape
{
  int num_stages;
  int rows;  //!< at most rows_per_batch
  int row_bytes;
  int num_batches;  //!< of one position, at least 1; an empty one when there is no row
};

//! Each thread copies, reads and frees the chunks of its own columns, so no barrier guards a stage: num_stages - 1 batches are
//! always on their way.
template <class T, class Columns, int Capacity>
class row_stages
{
public:
  __device__ __forceinline__ row_stages(const route_parameters<T>& p,
                                        const row_pointers<T, Capacity>& rows,
                                        const Columns& columns, const stage_shape& shape,
                                        char* memory)
      : p_{p},
        rows_{rows},
        columns_{columns},
        shape_{shape},
        memory_{memory},
        position_{blockIdx.x},
        ahead_{blockIdx.x}
  {
  }

  __device__ __forceinline__ void start()
  {
    for (int stage = 0; stage < shape_.num_stages - 1; ++stage) { copy_batch(stage); }
  }
  [[nodiscard]] __device__ __forceinline__ bool more() const
  {
    return position_ < p_.num_positions;
  }
  [[nodiscard]] __device__ __forceinline__ std::int64_t position() const { return position_; }
  [[nodiscard]] __device__ __forceinline__ int first_row() const { return first_of(batch_); }
  [[nodiscard]] __device__ __forceinline__ int count() const { return count_of(batch_); }
  [[nodiscard]] __device__ __forceinline__ bool last_of_position() const
  {
    return batch_ == shape_.num_batches - 1;
  }

  //! Sends the next batch on its way and waits for the current one.
  [[nodiscard]] __device__ __forceinline__ staged_rows<T> wait()
  {
    copy_batch(stage_ == 0 ? shape_.num_stages - 1 : stage_ - 1);
    wait_for_copy_groups(shape_.num_stages - 1);
    return {memory_of(stage_), shape_.row_bytes};
  }
  __device__ __forceinline__ void next()
  {
    stage_ = stage_ + 1 == shape_.num_stages ? 0 : stage_ + 1;
    step(position_, batch_);
  }

private:
  [[nodiscard]] __device__ __forceinline__ char* memory_of(int stage) const
  {
    return memory_ + stage * shape_.rows * shape_.row_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ int first_of(int batch) const
  {
    return batch * shape_.rows;
  }
  [[nodiscard]] __device__ __forceinline__ int count_of(int batch) const
  {
    const int left = p_.num_rows - first_of(batch);
    return left < shape_.rows ? left : shape_.rows;
  }
  __device__ __forceinline__ void step(std::int64_t& position, int& batch) const
  {
    ++batch;
    if (batch == shape_.num_batches) {
      batch = 0;
      position += gridDim.x;
    }
  }

  //! Past the last position the group is empty, which keeps the count of groups.
  __device__ __forceinline__ void copy_batch(int stage)
  {
    if (ahead_ < p_.num_positions) {
      if (ahead_batch_ == 0) { prefetch_inputs(); }
      const int first = first_of(ahead_batch_);
      const int count = count_of(ahead_batch_);
      char* to = memory_of(stage);
      for (int k = 0; k < count; ++k, to += shape_.row_bytes) {
        const char* const from = reinterpret_cast<const char*>(rows_.at(first + k, ahead_));
#pragma unroll
        for (int i = 0; i < columns_.size(); ++i) {
          const int offset = columns_.chunk(i) * 16;
          if (columns_.valid(i)) { copy_async(to + offset, from + offset); }
        }
      }
      step(ahead_, ahead_batch_);
    }
    end_copy_group();
  }

  //! What the end of a position and a row's delta read is asked for when the position's rows are.
  __device__ __forceinline__ void prefetch_inputs() const
  {
    const const_matrix* const inputs[] = {&p_.partial, &p_.delta};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const const_matrix& input = *inputs[n];
      if (!input) { continue; }
      const auto* const from = static_cast<const char*>(input.data) +
                               ahead_ * input.position_stride * size_of(input.type);
#pragma unroll
      for (int i = 0; i < columns_.size(); ++i) {
        if (columns_.valid(i)) { prefetch_to_l2(from + columns_.column(i) * size_of(input.type)); }
      }
    }
  }

  const route_parameters<T>& p_;
  const row_pointers<T, Capacity>& rows_;
  const Columns& columns_;
  stage_shape shape_;
  char* memory_;
  std::int64_t position_;
  std::int64_t ahead_;
  int batch_ = 0;
  int ahead_batch_ = 0;
  int stage_ = 0;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
