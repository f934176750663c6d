// SPDX-License-Identifier: Apache-2.0
//! Backward of a call: rows on their way through shared memory. Without a ring they are read where they are.
#pragma once

#include <mhar/block/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ int route_gradient<T, Chunks, Capacity>::rows_in(int batch) const
{
  const int left = call_.num_rows - batch * call_.rows_per_stage;
  return left < call_.rows_per_stage ? left : call_.rows_per_stage;
}

//! Begins to copy the first stages of positions [first, last).
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::start_ring(std::int64_t first,
                                                                                std::int64_t last)
{
  if constexpr (has_ring) {
    copied_position_ = first;
    last_position_ = last;
    for (stage_ = 0; stage_ < call_.num_stages; ++stage_) {
      copy_step();
      detail::end_copy_group();
      if (++copied_step_ == num_steps_) {
        copied_step_ = 0;
        ++copied_position_;
      }
    }
    stage_ = 0;
  }
}

//! Copies the rows of the step that is next in line into the current stage, which the thread has read.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::copy_step() const
{
  if (copied_position_ >= last_position_ || head_ >= call_.extent.num_heads) { return; }
  const int batch = copied_step_ < num_batches_ ? copied_step_ : copied_step_ - num_batches_;
  const int first = batch * call_.rows_per_stage;
  const int rows = rows_in(batch);
  const bool strided = call_.rows.base != nullptr;
  const std::int64_t offset = copied_position_ * call_.rows.position_stride + column_;
  const T* from = strided ? call_.rows.base + first * call_.rows.row_stride : nullptr;
  unsigned char* slot = slot_memory(0);
  for (int k = 0; k < rows; ++k) {
    const T* const row = strided ? from : call_.rows.list[first + k];
    copy_chunks(reinterpret_cast<T*>(slot) + column_, row + offset);
    from += call_.rows.row_stride;
    slot += call_.slot_bytes;
  }
  // Old gradients are needed when ds is formed: in the only step of a position, or in the second half of them.
  if (call_.old_gradient_bytes > 0 &&
      (num_steps_ == num_batches_ || copied_step_ >= num_batches_)) {
    copy_old_gradients(first, rows);
  }
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::copy_old_gradients(
    int first, int rows) const
{
  const std::int64_t index = copied_position_ * call_.row_gradients.position_stride + column_;
  unsigned char* old = slot_memory(1) - call_.old_gradient_bytes;
  for (int k = 0; k < rows; ++k) {
    const unsigned char* const gradient = call_.row_gradients.row(first + k);
    if (gradient != nullptr) {
      if (call_.row_gradients.type == element_of<T>::value) {
        copy_chunks(reinterpret_cast<T*>(old) + column_,
                    reinterpret_cast<const T*>(gradient) + index);
      }
      else {
        copy_chunks(reinterpret_cast<accumulate*>(old) + column_,
                    reinterpret_cast<const accumulate*>(gradient) + index);
      }
    }
    old += call_.slot_bytes;
  }
}

//! Begins to copy the thread's chunks of an array that is like a row but for its element type.
template <class T, int Chunks, int Capacity>
template <class Element>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::copy_chunks(
    Element* to, const Element* from) const
{
  constexpr int piece = thread::chunk_width<Element>;
#pragma unroll
  for (int chunk = 0; chunk < Chunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < width; i += piece) {
      detail::copy_async(to + chunk * step_ + i, from + chunk * step_ + i);
    }
  }
}

//! The current stage has been read and its refill begun: go to the next one.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::close_step()
{
  if constexpr (has_ring) {
    detail::end_copy_group();
    if (++stage_ == call_.num_stages) { stage_ = 0; }
    if (++copied_step_ == num_steps_) {
      copied_step_ = 0;
      ++copied_position_;
    }
  }
}

//! Waits for the thread's own copies of the current stage.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::wait_for_rows() const
{
  if constexpr (has_ring) { detail::wait_for_copy_groups(call_.num_stages - 1); }
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::row_values(
    int slot, int row, std::int64_t position, int, std::int64_t column, int count) const -> values
{
  if constexpr (has_ring) {
    return thread::widen_all<accumulate>(
        thread::load_vector(reinterpret_cast<const T*>(slot_memory(slot)) + column));
  }
  else {
    return detail::load_columns<accumulate, width>(call_.rows.at(row, position),
                                                   element_of<T>::value, column, count);
  }
}

}  // namespace block
MHAR_NAMESPACE_END
