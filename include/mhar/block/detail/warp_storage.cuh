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
  bool keeps_null;  //!< beside the query
};

//! Shared memory of a block, in this order: the folded query, the null source where there is one, logits of it, the gate, how many
//! positions have been dealt to warps, steps of each warp, sums over spans of the warps of each position, barriers, rings.
template <class T, int Chunks, int Spans, int Rows, int Split>
struct warp_storage
{
  static constexpr int max_heads = 8;
  static constexpr int heads = max_heads / Split;  //!< of a warp
  static constexpr int spans = Split == 1 ? 40 : 64;
  //! Of two rows, sixteen sums each, other banks. Warps that share a position and have no more than the sum of each head exchange these.
  static constexpr int stride = Split == 1 ? 40 : Spans == 1 ? max_heads : 72;
  static constexpr int query_bytes = Split * Chunks * 32 * thread::chunk_width<T> * 4;
  //! The lanes of a head find a single row's step themselves.
  static constexpr int steps_bytes = Rows > 1 ? Rows* heads * 8 : 0;
  //! Of squares; where warps share a position, for even and odd batches.
  static constexpr int sums_bytes = Split * Rows * stride * 4;

  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int null_logits_offset(
      const warp_ring& ring) noexcept
  {
    return ring.keeps_null ? 2 * query_bytes : query_bytes;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int gate_offset(const warp_ring& ring) noexcept
  {
    return null_logits_offset(ring) + max_heads * 4;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int steps_offset(const warp_ring& ring) noexcept
  {
    return gate_offset(ring) + 16;
  }
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int sums_offset(const warp_ring& ring) noexcept
  {
    return steps_offset(ring) + ring.warps * steps_bytes;
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
