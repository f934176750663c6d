// SPDX-License-Identifier: Apache-2.0
//! The rows of all positions of a block as a stream of batches that run ahead through shared memory.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/bulk_copy.cuh>
#include <mhar/block/detail/route_rows.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How shared memory is cut: `num_stages` stages of `rows` rows, and how many batches a position has.
struct stage_shape
{
  int num_stages;  //!< at most max_stages
  int rows;        //!< at most rows_per_batch
  int row_bytes;
  int num_batches;  //!< of one position, at least 1; an empty one when there is no row
};
inline constexpr int max_stages = 8;

//! Where stages begin behind `bytes` of shared memory: the copy engine fills places on 128-byte boundaries faster.
[[nodiscard]] MHAR_HOST_DEVICE constexpr std::size_t stages_offset(std::size_t bytes) noexcept
{
  return (bytes + 127) / 128 * 128;
}

//! A place in the stream: batch `batch` of a position, in a stage; every block takes every gridDim.x-th position.
struct stream_place
{
  std::int64_t position;
  int batch = 0;
  int stage = 0;
  int phase = 0;  //!< 0 or 1 in turn, each time the stages begin anew

  __device__ __forceinline__ void step(const stage_shape& shape)
  {
    if (++stage == shape.num_stages) {
      stage = 0;
      phase ^= 1;
    }
    if (++batch == shape.num_batches) {
      batch = 0;
      position += gridDim.x;
    }
  }
  [[nodiscard]] __device__ __forceinline__ int first_row(const stage_shape& shape) const
  {
    return batch * shape.rows;
  }
  [[nodiscard]] __device__ __forceinline__ int num_rows(const stage_shape& shape,
                                                        int of_position) const
  {
    const int left = of_position - first_row(shape);
    return left < shape.rows ? left : shape.rows;
  }
  [[nodiscard]] __device__ __forceinline__ int offset(const stage_shape& shape) const
  {
    return stage * shape.rows * shape.row_bytes;
  }
};

//! What the end of a position and a row's delta read is asked for, by one warp, when the position's rows are.
__device__ __forceinline__ void prefetch_position(const const_matrix& input, int width,
                                                  std::int64_t position)
{
  if (!input) { return; }
  const int size = size_of(input.type);
  const char* const from =
      static_cast<const char*>(input.data) + position * input.position_stride * size;
  for (int byte = (static_cast<int>(threadIdx.x) & 31) * 128; byte < width * size;
       byte += 32 * 128) {
    prefetch_to_l2(from + byte);
  }
}

//! Fills the stages. With a copy engine one thread of the warps that serve the heads copies whole rows; without one each thread
//! copies the chunks of its own columns, and the heads' warps do nothing.
//!
//! `place` is the batch to be copied next; it starts at the block's first.
template <class T, int Capacity>
class row_stages
{
public:
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr bool has_engine = false;
#else
  static constexpr bool has_engine = true;
#endif

  __device__ __forceinline__ row_stages(const route_parameters<T>& p,
                                        const row_pointers<T, Capacity>& rows,
                                        const stage_shape& shape, char* memory,
                                        std::uint64_t* barriers)
      : p_{p}, rows_{rows}, shape_{shape}, memory_{memory}, barriers_{barriers}, place_{blockIdx.x}
  {
  }

  //! By the first warp of the heads: the first batches, and each time a stage is free again, the next one.
  __device__ __forceinline__ void init_barriers() const
  {
    if (has_engine && (threadIdx.x & 31) == 0) {
      for (int stage = 0; stage < shape_.num_stages; ++stage) { barrier(stage).init(); }
      fence_bulk_copies();
    }
  }
  __device__ __forceinline__ void copy_rows()
  {
    if (place_.position < p_.num_positions) {
      if (has_engine && (threadIdx.x & 31) == 0) {
        const int first = place_.first_row(shape_);
        const int count = place_.num_rows(shape_, p_.num_rows);
        barrier(place_.stage).expect(count * shape_.row_bytes);
        char* to = memory_ + place_.offset(shape_);
        for (int k = 0; k < count; ++k, to += shape_.row_bytes) {
          copy_bulk(to, rows_.at(first + k, place_.position), shape_.row_bytes,
                    barrier(place_.stage));
        }
      }
      if (place_.batch == 0) {
        prefetch_position(p_.partial, p_.tree.width, place_.position);
        prefetch_position(p_.delta, p_.tree.width, place_.position);
      }
    }
    place_.step(shape_);
  }

  //! By each thread with columns.
  template <class Columns>
  __device__ __forceinline__ void copy_columns(const Columns& columns)
  {
    if (has_engine) { return; }
    if (place_.position < p_.num_positions) {
      const int first = place_.first_row(shape_);
      const int count = place_.num_rows(shape_, p_.num_rows);
      char* to = memory_ + place_.offset(shape_) + columns.chunk(0) * 16;
#pragma unroll 1
      for (int k = 0; k < count; ++k, to += shape_.row_bytes) {
        const char* const from =
            reinterpret_cast<const char*>(rows_.at(first + k, place_.position)) +
            columns.chunk(0) * 16;
#pragma unroll
        for (int i = 0; i < columns.size(); ++i) {
          if (columns.valid(i)) { copy_async(to + i * 512, from + i * 512); }
        }
      }
      place_.step(shape_);
    }
    // Past the last position the group is empty, which keeps the count of groups.
    end_copy_group();
  }
  //! Waits for a batch; `pending` are younger and need not have come.
  __device__ __forceinline__ void wait(const stream_place& place, int pending) const
  {
    if (has_engine) { barrier(place.stage).wait(place.phase); }
    else {
      wait_for_copy_groups(pending);
    }
  }

private:
  [[nodiscard]] __device__ __forceinline__ copy_barrier barrier(int stage) const
  {
    return {barriers_ + stage};
  }

  const route_parameters<T>& p_;
  const row_pointers<T, Capacity>& rows_;
  const stage_shape& shape_;
  char* memory_;
  std::uint64_t* barriers_;
  stream_place place_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
