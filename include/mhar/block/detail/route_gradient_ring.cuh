// SPDX-License-Identifier: Apache-2.0
//! Backward of a call: rows on their way through shared memory. Without a ring they are read where
//! they are.
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
    copy_inputs(first);
    for (stage_ = 0; stage_ < call_.num_stages; ++stage_) {
      copy_step();
      detail::end_copy_group();
      if (++copied_step_ == num_steps_) {
        copied_step_ = 0;
        ++copied_position_;
      }
    }
    stage_ = 0;
    closed_ = call_.num_stages;
    starts_ = 0;
  }
}

//! Copies the rows of the step that is next in line into the current stage, which the thread has
//! read.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::copy_step() const
{
  if (copied_position_ >= last_position_ || head_ >= call_.extent.num_heads) { return; }
  const int batch = copied_step_ < num_batches_ ? copied_step_ : copied_step_ - num_batches_;
  const int first = batch * call_.rows_per_stage;
  const int rows = rows_in(batch);
  const std::int64_t offset = copied_position_ * call_.rows.position_stride + column_;
  unsigned char* slot = slot_memory(0) + column_ * static_cast<int>(sizeof(T));
  if (call_.rows.base != nullptr) {
    const T* from = call_.rows.base + first * call_.rows.row_stride + offset;
    for (int k = 0; k < rows; ++k) {
      copy_chunks(reinterpret_cast<T*>(slot), from);
      from += call_.rows.row_stride;
      slot += call_.slot_bytes;
    }
  }
  else {
    for (int k = 0; k < rows; ++k) {
      copy_chunks(reinterpret_cast<T*>(slot), call_.rows.list[first + k] + offset);
      slot += call_.slot_bytes;
    }
  }
  // Old gradients are needed when ds is formed: in the only step of a position, or in the second
  // half of them.
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

//! An input whose elements have the rows' type.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::copy_plain_input(
    const const_matrix& from, call_input which, std::int64_t position) const
{
  copy_chunks(reinterpret_cast<T*>(input_memory(which)) + column_,
              static_cast<const T*>(from.data) + position * from.position_stride + column_);
}

//! Copies what a position starts from, into memory whose last content the thread has read, and the
//! position's lse and inverse rms. They are a group of their own, so that rows asked for later do
//! not hold them up.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::copy_inputs(
    std::int64_t position)
{
  if constexpr (has_ring) {
    if (position < last_position_) {
      if (head_ < call_.extent.num_heads) {
        if (starts_plainly()) {
          copy_plain_input(call_.output_gradient, call_input::output_gradient, position);
          copy_plain_input(call_.mix, call_input::mix, position);
        }
        else {
          for (const call_input which : {call_input::output_gradient, call_input::combined_gradient,
                                         call_input::mix, call_input::combined}) {
            const const_matrix& from = matrix_of(which);
            if (from.data == nullptr) { continue; }
            if (from.type == element_of<T>::value) { copy_plain_input(from, which, position); }
            else {
              copy_chunks(reinterpret_cast<accumulate*>(input_memory(which)) + column_,
                          static_cast<const accumulate*>(from.data) +
                              position * from.position_stride + column_);
            }
          }
        }
      }
      const int num_heads = call_.extent.num_heads;
      accumulate* const statistics = statistics_of(position);
      for (int i = static_cast<int>(threadIdx.x); i < num_heads && call_.lse != nullptr;
           i += call_.map.num_threads) {
        detail::copy_async_4(statistics + i, call_.lse + position * num_heads + i);
      }
      for (int i = static_cast<int>(threadIdx.x);
           i < call_.num_rows && call_.inverse_rms != nullptr; i += call_.map.num_threads) {
        detail::copy_async_4(statistics + num_heads + i,
                             call_.inverse_rms + i * call_.extent.num_positions + position);
      }
    }
    detail::end_copy_group();
    closed_ = 0;
    starts_ |= 1u;
  }
}

template <class T, int Chunks, int Capacity>
__device__ __forceinline__ auto route_gradient<T, Chunks, Capacity>::statistics_of(
    std::int64_t position) const -> accumulate*
{
  const int parity = static_cast<int>(position & 1);
  return arena_ + call_.arena.statistics + parity * (call_.extent.num_heads + call_.num_rows);
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
    ++closed_;
    starts_ <<= 1;
  }
}

//! Waits for the thread's own copies of the position's inputs: the groups after theirs are those of
//! the steps closed since.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::wait_for_inputs() const
{
  if constexpr (has_ring) { detail::wait_for_copy_groups(closed_); }
}

//! Waits for the thread's own copies of the current stage. The groups after theirs are those of the
//! other stages, and of inputs copied since then.
template <class T, int Chunks, int Capacity>
__device__ __forceinline__ void route_gradient<T, Chunks, Capacity>::wait_for_rows() const
{
  if constexpr (has_ring) {
    const unsigned since = starts_ & ((1u << call_.num_stages) - 1);
    detail::wait_for_copy_groups(call_.num_stages - 1 + __popc(since));
  }
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
