// SPDX-License-Identifier: Apache-2.0
//! The shared memory of a block of route_cluster.cuh, and rows that are spread over the blocks of a cluster.
#pragma once

#include <mhar/block/detail/cluster.cuh>
#include <mhar/block/detail/route_rows.cuh>
#include <mhar/thread/softmax_state.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! What the blocks of a cluster share of one position. Sources are the null source, when there is one, and the rows. A warp that
//! mixes serves the heads of its columns itself: what it finds for one of them is a slot.
template <class T>
struct cluster_storage
{
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;

  cluster_mailbox* mailboxes;  //!< [3]: sums of the sources, sums of o^2, those again for large o
  accumulate* squares;         //!< [sources][stride] of spans, of all columns: s^2
  accumulate* products;        //!< [sources][stride] of spans, of all columns: <w, s>
  accumulate* output_squares;  //!< [2][stride] of spans, of all columns: o^2, and for large o
  step* steps;                 //!< [warps][slots][slot_size]
  accumulate* logits;          //!< [warps][slots][slot_size]
  int stride;
  int slots;
  int slot_size;  //!< sources, or more: steps that change nothing follow

  //! A multiple of four, so that four sums are one access, and an odd one, so that neighbouring sources lie in different banks.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int stride_of(
      const thread::width_tree& tree) noexcept
  {
    return 4 * (((tree.num_spans + 3) / 4) | 1);
  }
  //! Heads that a run of chunks can belong to.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int slots_of(const thread::width_tree& tree,
                                                               int chunks) noexcept
  {
    const int slots = (chunks + tree.chunks_per_head - 2) / tree.chunks_per_head + 1;
    return slots < tree.num_heads ? slots : tree.num_heads;
  }
  //! A multiple of 16. `steps` are at least so many in a slot.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int bytes(const thread::width_tree& tree,
                                                            int sources, int warps,
                                                            int chunks_per_warp, int steps) noexcept
  {
    const int sums = 2 * (sources + 1) * stride_of(tree);
    const int heads =
        3 * warps * slots_of(tree, chunks_per_warp) * (sources > steps ? sources : steps);
    return static_cast<int>(sizeof(accumulate)) * ((sums + heads + 3) / 4 * 4) + mailbox_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ static cluster_storage carve(
      char* memory, const thread::width_tree& tree, int sources, int warps, int chunks_per_warp,
      int steps)
  {
    cluster_storage s;
    s.stride = stride_of(tree);
    s.slots = slots_of(tree, chunks_per_warp);
    s.slot_size = sources > steps ? sources : steps;
    s.mailboxes = reinterpret_cast<cluster_mailbox*>(memory);
    s.squares = reinterpret_cast<accumulate*>(memory + mailbox_bytes);
    s.products = s.squares + sources * s.stride;
    s.output_squares = s.products + sources * s.stride;
    s.steps = reinterpret_cast<step*>(s.output_squares + 2 * s.stride);
    s.logits = reinterpret_cast<accumulate*>(s.steps + warps * s.slots * s.slot_size);
    return s;
  }

  //! By one thread.
  __device__ __forceinline__ void open(const thread::width_tree& tree, int sources) const
  {
    mailboxes[0].open(2 * sources * tree.num_spans);
    mailboxes[1].open(tree.num_spans);
    mailboxes[2].open(tree.num_spans);
  }
  //! Sums are read four at a time. By `threads` threads, of which this is one.
  __device__ __forceinline__ void clear_padding(const thread::width_tree& tree, int sources,
                                                int thread, int threads) const
  {
    const int padding = stride - tree.num_spans;
#pragma unroll 1
    for (int i = thread; i < sources * padding; i += threads) {
      const int source = i / padding;
      const int place = source * stride + tree.num_spans + i - source * padding;
      squares[place] = 0;
      products[place] = 0;
    }
  }

private:
  static constexpr int mailbox_bytes = 32;
  static_assert(3 * sizeof(cluster_mailbox) <= mailbox_bytes, "sums are aligned to 16 bytes");
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

}  // namespace block::detail
MHAR_NAMESPACE_END
