// SPDX-License-Identifier: Apache-2.0
//! The kernel of the merge of partial results (eq. 18).
#pragma once

#include <mhar/block/detail/columns.cuh>
#include <mhar/block/detail/dependency.cuh>
#include <mhar/block/row_pointers.cuh>
#include <mhar/thread/multiply_add.hpp>
#include <mhar/thread/softmax_state.hpp>
#include <mhar/types/call.hpp>

MHAR_NAMESPACE_BEGIN
namespace kernel {

//! A merge_problem without its parts' mixes, as a kernel's parameter.
template <class T>
struct merge_parameters
{
  std::int64_t num_entries;  //!< heads of all positions
  int num_heads;
  int num_parts;
  std::int64_t head_width;
  const accumulate_t<T>* part_lse;
  std::int64_t part_lse_stride;
  matrix mix;
  accumulate_t<T>* lse;
};

//! A head of a position at a time is a block's.
template <class T, int Capacity>
__global__ void __launch_bounds__(256)
    merge_kernel(const __grid_constant__ merge_parameters<T> p,
                 const __grid_constant__ block::row_pointers<T, Capacity> parts)
{
  using accumulate = accumulate_t<T>;
  constexpr int width = thread::chunk_width<T>;
  block::detail::release_dependents();
  block::detail::wait_for_dependencies();

  for (std::int64_t entry = blockIdx.x; entry < p.num_entries; entry += gridDim.x) {
    const accumulate* const part_lse = p.part_lse + entry;
    thread::softmax_state<accumulate> state;
    for (int i = 0; i < p.num_parts; ++i) {
      static_cast<void>(state.advance(part_lse[i * p.part_lse_stride]));
    }
    const accumulate normalizer = state.normalizer();

    const std::int64_t position = entry / p.num_heads;
    const std::int64_t first = (entry - position * p.num_heads) * p.head_width;
    const std::int64_t step = std::int64_t{width} * blockDim.x;
    for (std::int64_t k = std::int64_t{width} * threadIdx.x; p.mix && k < p.head_width; k += step) {
      const std::int64_t left = p.head_width - k;
      const int count = left < width ? static_cast<int>(left) : width;
      thread::vector<accumulate, width> mix{};
      bool alone = true;
      for (int i = 0; i < p.num_parts; ++i) {
        // Without weight a part is not read: its mix may hold anything. A sum of 0 has no exponent to take a difference from.
        if (state.sum == accumulate{0}) { break; }
        const accumulate weight =
            thread::exp_of(part_lse[i * p.part_lse_stride] - state.maximum) * normalizer;
        if (weight == accumulate{0}) { continue; }
        const T* const from = parts.at(i, position) + first + k;
        const auto part = thread::widen_all<accumulate>(
            count == width && thread::is_aligned(from, 16) ? thread::load_vector(from)
                                                           : thread::load_elements(from, count));
        // Added to a sum of 0, -0 would become 0.
        for (int c = 0; c < width; ++c) {
          mix[c] = alone ? weight * part[c] : thread::multiply_add(weight, part[c], mix[c]);
        }
        alone = false;
      }
      block::detail::store_columns(p.mix.data, p.mix.type,
                                   position * p.mix.position_stride + first + k, count, mix);
    }
    if (p.lse != nullptr) {
      // It may take the place of a part's, which the block has read by now.
      __syncthreads();
      if (threadIdx.x == 0) { p.lse[entry] = state.log_sum_exp(); }
    }
  }
}

}  // namespace kernel
MHAR_NAMESPACE_END
