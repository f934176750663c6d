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
  accumulate* sums;            //!< [sources][spans][2], of all columns: <w, s> and s^2
  accumulate* output_squares;  //!< [2][spans], of all columns: o^2, and for large o
  accumulate* logits;          //!< [heads of the block][sources]
  step* steps;                 //!< [warps][slots][slot_size]
  accumulate* maxima;          //!< [warps][slots]: of the logits
  int spans;
  int sources;
  int slots;
  int slot_size;  //!< sources, or more: steps that change nothing follow

  //! Heads that a run of chunks can belong to.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int heads_of(const thread::width_tree& tree,
                                                               int chunks) noexcept
  {
    const int heads = (chunks + tree.chunks_per_head - 2) / tree.chunks_per_head + 1;
    return heads < tree.num_heads ? heads : tree.num_heads;
  }
  //! A multiple of 16. `steps` are at least so many in a slot.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int bytes(const thread::width_tree& tree,
                                                            int sources, int warps,
                                                            int chunks_per_warp, int steps) noexcept
  {
    const int slots = warps * heads_of(tree, chunks_per_warp);
    const int values = 2 * (sources + 1) * tree.num_spans +
                       logits_of(tree, sources, warps * chunks_per_warp) +
                       slots * (2 * (sources > steps ? sources : steps) + 1);
    return static_cast<int>(sizeof(accumulate)) * ((values + 3) / 4 * 4) + mailbox_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ static cluster_storage carve(
      char* memory, const thread::width_tree& tree, int sources, int warps, int chunks_per_warp,
      int steps)
  {
    cluster_storage s;
    s.spans = tree.num_spans;
    s.sources = sources;
    s.slots = heads_of(tree, chunks_per_warp);
    s.slot_size = sources > steps ? sources : steps;
    s.mailboxes = reinterpret_cast<cluster_mailbox*>(memory);
    s.sums = reinterpret_cast<accumulate*>(memory + mailbox_bytes);
    s.output_squares = s.sums + 2 * sources * s.spans;
    s.logits = s.output_squares + 2 * s.spans;
    s.steps = reinterpret_cast<step*>(s.logits + logits_of(tree, sources, warps * chunks_per_warp));
    s.maxima = reinterpret_cast<accumulate*>(s.steps + warps * s.slots * s.slot_size);
    return s;
  }

  //! By one thread.
  __device__ __forceinline__ void open() const
  {
    mailboxes[0].open(2 * sources * spans);
    mailboxes[1].open(spans);
    mailboxes[2].open(spans);
  }

private:
  static constexpr int mailbox_bytes = 32;
  static_assert(3 * sizeof(cluster_mailbox) <= mailbox_bytes, "sums are aligned to 16 bytes");

  //! An even number, so that steps are aligned.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int logits_of(const thread::width_tree& tree,
                                                                int sources, int chunks) noexcept
  {
    return (heads_of(tree, chunks) * sources + 1) / 2 * 2;
  }
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
