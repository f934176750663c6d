// SPDX-License-Identifier: Apache-2.0
//! The memory that the threads of a block share while they route: sums over the width on their way, and the heads' states.
#pragma once

#include <mhar/thread/softmax_state.hpp>
#include <mhar/thread/width_tree.hpp>

#include <cstddef>
#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Rows that are summed, weighed and mixed between two pairs of barriers.
inline constexpr int rows_per_batch = 4;

//! Accumulate is a storage of pointers: into shared memory, or into global memory for a width that shared memory cannot hold.
template <class Accumulate>
struct route_storage
{
  Accumulate* sums;  //!< [2*rows_per_batch][stride] of spans: <w, s> of each row, then s^2 of each
  Accumulate* output_sums;                    //!< [stride] of spans: o^2
  Accumulate* inverse;                        //!< [rows_per_batch] r, for keys that are rounded
  Accumulate* null_logits;                    //!< [H]
  Accumulate* normalizers;                    //!< [H]
  thread::softmax_step<Accumulate>* steps;    //!< [rows_per_batch][H]
  thread::softmax_state<Accumulate>* states;  //!< [H]
  int stride;

  //! An odd stride spreads the eight values that a warp stores at once over the banks.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int stride_of(
      const thread::width_tree& tree) noexcept
  {
    return tree.num_spans | 1;
  }
  //! Elements of storage that a shape needs: a multiple of 16 bytes.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::size_t size(
      const thread::width_tree& tree) noexcept
  {
    const auto stride = static_cast<std::size_t>(stride_of(tree));
    const auto heads = static_cast<std::size_t>(tree.num_heads);
    const std::size_t elements =
        (2 * rows_per_batch + 1) * stride + rows_per_batch + (2 * rows_per_batch + 4) * heads + 2;
    return (elements + 3) / 4 * 4;
  }

  [[nodiscard]] MHAR_HOST_DEVICE static route_storage carve(Accumulate* memory,
                                                            const thread::width_tree& tree) noexcept
  {
    route_storage s{};
    s.stride = stride_of(tree);
    // Pairs come first: they are accessed as one.
    s.steps = reinterpret_cast<thread::softmax_step<Accumulate>*>(memory);
    s.states = reinterpret_cast<thread::softmax_state<Accumulate>*>(s.steps + rows_per_batch *
                                                                                  tree.num_heads);
    s.null_logits = reinterpret_cast<Accumulate*>(s.states + tree.num_heads);
    s.normalizers = s.null_logits + tree.num_heads;
    s.inverse = s.normalizers + tree.num_heads;
    s.sums = s.inverse + rows_per_batch;
    s.output_sums = s.sums + 2 * rows_per_batch * s.stride;
    return s;
  }

  //! What a batch leaves behind in every second storage, so that work on one batch and on the next can overlap; the rest is
  //! that of the first storage. `distance` is size(tree).
  [[nodiscard]] MHAR_HOST_DEVICE MHAR_FORCE_INLINE route_storage
  alternate(int parity, int distance) const noexcept
  {
    route_storage s = *this;
    if (parity != 0) {
      s.steps = reinterpret_cast<thread::softmax_step<Accumulate>*>(
          reinterpret_cast<Accumulate*>(steps) + distance);
      s.normalizers += distance;
      s.sums += distance;
    }
    return s;
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
