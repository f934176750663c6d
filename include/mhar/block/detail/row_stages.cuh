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

//! A place in the stream: batch `batch` of a position, in a stage; every block takes every gridDim.x-th position.
struct stream_place
{
  std::int64_t position;
  int batch = 0;
  int stage = 0;

  __device__ __forceinline__ void step(const stage_shape& shape)
  {
    stage = stage + 1 == shape.num_stages ? 0 : stage + 1;
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

//! Starts the copies of a batch, each thread those of its own columns, so that no barrier guards a stage. Past the last position
//! the group of copies is empty, which keeps the count of groups.
template <class T, class Columns, int Capacity>
__device__ __forceinline__ void copy_batch(const route_parameters<T>& p,
                                           const row_pointers<T, Capacity>& rows,
                                           const Columns& columns, const stage_shape& shape,
                                           const stream_place& place, char* memory)
{
  if (place.position < p.num_positions) {
    const int first = place.first_row(shape);
    const int count = place.num_rows(shape, p.num_rows);
    char* to = memory + place.offset(shape) + columns.chunk(0) * 16;
#pragma unroll 1
    for (int k = 0; k < count; ++k, to += shape.row_bytes) {
      const char* const from =
          reinterpret_cast<const char*>(rows.at(first + k, place.position)) + columns.chunk(0) * 16;
#pragma unroll
      for (int i = 0; i < columns.size(); ++i) {
        if (columns.valid(i)) { copy_async(to + i * 512, from + i * 512); }
      }
    }
  }
  end_copy_group();
}

//! Asks for what the end of a position and a row's delta read, when the position's rows are asked for.
template <class T, class Columns>
__device__ __forceinline__ void prefetch_inputs(const route_parameters<T>& p,
                                                const Columns& columns, std::int64_t position)
{
  if (position >= p.num_positions) { return; }
#pragma unroll 1
  for (int n = 0; n < 2; ++n) {
    const const_matrix& input = n == 0 ? p.partial : p.delta;
    if (!input) { continue; }
    const int size = size_of(input.type);
    const char* const from = static_cast<const char*>(input.data) +
                             (position * input.position_stride + columns.column(0)) * size;
#pragma unroll
    for (int i = 0; i < columns.size(); ++i) {
      if (columns.valid(i)) { prefetch_to_l2(from + i * 32 * Columns::chunk_width * size); }
    }
  }
}

}  // namespace block::detail
MHAR_NAMESPACE_END
