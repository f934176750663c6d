// SPDX-License-Identifier: Apache-2.0
//! The shared memory of a block whose warps serve positions of their own.
#pragma once

#include <mhar/thread/vector.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How a block's shared memory is cut: each warp has a ring of `slots` rows, or of its parts of rows.
struct warp_ring
{
  int warps;
  int slots;
  int slot_bytes;
};

//! Shared memory of a block, in this order: the folded query, logits of the null source, steps of each warp, sums over spans of the
//! warps of each position, barriers, rings.
template <class T, int Chunks, int Rows, int Split>
struct warp_storage
{
  static constexpr int max_heads = 8;
  static constexpr int spans = Split == 1 ? 40 : 64;
  //! Of two rows, sixteen sums each, other banks.
  static constexpr int stride = Split == 1 ? 40 : 72;
  static constexpr int query_bytes = Split * Chunks * 32 * thread::chunk_width<T> * 4;
  static constexpr int steps_bytes = Rows * max_heads * 8;
  //! Of squares; where warps share a position, for even and odd batches.
  static constexpr int sums_bytes = Split * Rows * stride * 4;

  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int steps_offset() noexcept
  {
    return query_bytes + max_heads * 4;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int sums_offset(const warp_ring& ring) noexcept
  {
    return steps_offset() + ring.warps * steps_bytes;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int barriers_offset(
      const warp_ring& ring) noexcept
  {
    return sums_offset(ring) + ring.warps / Split * sums_bytes;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int ring_offset(const warp_ring& ring) noexcept
  {
    return (barriers_offset(ring) + ring.warps * ring.slots * 8 + 127) / 128 * 128;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int bytes(const warp_ring& ring) noexcept
  {
    return ring_offset(ring) + ring.warps * ring.slots * ring.slot_bytes;
  }
};

}  // namespace block::detail
MHAR_NAMESPACE_END
