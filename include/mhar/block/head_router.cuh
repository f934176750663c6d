// SPDX-License-Identifier: Apache-2.0
//! The forward of a routing call as a block-level object, for kernels of your own (eq. 1 to 5).
#pragma once

#include <mhar/block/detail/route_core.cuh>
#include <mhar/block/detail/route_finish.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Routes one position at a time and hands its mix to a function of the kernel, before anything is rounded or stored.
//!
//!     using router_type = mhar::block::head_router<mhar::bfloat16, 2048, 8>;
//!     __shared__ typename router_type::TempStorage storage;
//!     router_type router{storage, parameters, rows};
//!     for (position = blockIdx.x; position < parameters.num_positions; position += gridDim.x) {
//!       router(position, [&](int column, int count, const auto& mix) { ... });
//!     }
//!
//! T           element type of the rows
//! MaxWidth    the largest width d, and MaxHeads the largest number of heads, that the kernel will be given
//! Capacity    of the row_pointers: 0 for strided rows
//!
//! Threads     all threads of a one-dimensional block of whole warps construct it and call it, as for a barrier
//! Result      each column's mix is passed to one thread, in runs of up to 16/sizeof(T) columns of one head
//! Barriers    2 for each 4 rows of a position and 1 more; at most 5 in the constructor
//! Shared      sizeof(TempStorage): 8 bytes for each column of MaxWidth and about 5 more (T of 2 bytes), 76 for each head
//! Numerics    the bits of device::route. lse, inverse rms and weights are stored where the parameters ask for them; y, o, mix,
//!             gate, partial and output norm are left to the kernel
//! Cost        rows are read twice, the second time mostly from L2; device::route is faster where its result is all you need
template <class T, int MaxWidth, int MaxHeads, int Capacity = 0>
class head_router
{
  using columns_type = detail::memory_columns<T>;
  using storage_type = detail::route_storage<accumulate_t<T>>;
  static constexpr int max_spans = MaxWidth / thread::chunk_width<T> + MaxHeads;

public:
  using accumulate = accumulate_t<T>;
  //! Up to a chunk of columns.
  using values = thread::vector<accumulate, thread::chunk_width<T>>;

  struct TempStorage
  {
    alignas(16) accumulate memory[static_cast<std::size_t>(
        (2 * detail::rows_per_batch + 1) * (max_spans | 1) + detail::rows_per_batch + 6 +
        (2 * detail::rows_per_batch + 4) * MaxHeads + 2 * MaxWidth)];
  };

  //! Parameters and rows stay where they are: keep them as long as the router, best in the kernel's own parameters.
  __device__ __forceinline__ head_router(TempStorage& storage,
                                         const route_parameters<T>& parameters,
                                         const row_pointers<T, Capacity>& rows)
      : parameters_{parameters},
        rows_{rows},
        shared_{storage_type::carve(storage.memory, parameters.tree)},
        columns_{parameters, storage.memory + storage_type::size(parameters.tree)},
        core_{parameters_, shared_, columns_}
  {
    MHAR_ASSERT(parameters.tree.width <= MaxWidth && parameters.tree.num_heads <= MaxHeads);
    core_.begin();
  }
  //! Its parts refer to one another.
  head_router(const head_router&) = delete;
  head_router& operator=(const head_router&) = delete;

  //! Calls visitor(column, count, mix) for runs of columns [column, column + count).
  template <class Visitor>
  __device__ __forceinline__ void operator()(std::int64_t position, Visitor visitor)
  {
    using source_type = detail::rows_in_memory<T, row_pointers<T, Capacity>>;
    int first = 0;
    do {
      const int left = parameters_.num_rows - first;
      const int count = left < detail::rows_per_batch ? left : detail::rows_per_batch;
      core_.take(source_type{parameters_, rows_, position, first}, position, first, count);
      first += count;
    } while (first < parameters_.num_rows);
    for (int i = 0; i < columns_.size(); ++i) {
      if (!columns_.valid(i)) { continue; }
      values mix = columns_.mix(i);
#pragma unroll
      for (int c = 0; c < thread::chunk_width<T>; ++c) {
        mix[c] *= shared_.normalizers[columns_.head(i)];
      }
      visitor(columns_.column(i), columns_.count(i), mix);
    }
    // The next position's sums overwrite what was read here.
    __syncthreads();
  }

private:
  const route_parameters<T>& parameters_;
  const row_pointers<T, Capacity>& rows_;
  storage_type shared_;
  columns_type columns_;
  detail::route_core<T, columns_type> core_;
};

}  // namespace block
MHAR_NAMESPACE_END
