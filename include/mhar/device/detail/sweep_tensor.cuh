// SPDX-License-Identifier: Apache-2.0
//! Which passes the kernels on tensor cores serve, and what becomes a template argument for them.
#pragma once

#include <mhar/block/row_pointers.cuh>
#include <mhar/device/detail/dispatch.cuh>
#include <mhar/device/detail/sweep_launch.cuh>
#include <mhar/kernel/sweep_tensor.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! The answer of a launcher that leaves a pass to the plain kernel.
[[nodiscard]] inline status not_served() noexcept
{
  return {code::unsupported, "pass", "not one for tensor cores", 0};
}

//! Head widths that have kernels.
[[nodiscard]] inline bool has_tensor_kernel(const shape& extent) noexcept
{
  const std::int64_t width = extent.head_width();
  return (width == 64 || width == 128 || width == 160) &&
         extent.num_heads <= tuning::sweep_policy::max_heads;
}

//! Calls visitor(head width) with it as a type.
template <class Visitor>
status dispatch_head_width(std::int64_t head_width, Visitor&& visitor) noexcept
{
  switch (head_width) {
    case 64: return visitor(cuda::std::integral_constant<int, 64>{});
    case 128: return visitor(cuda::std::integral_constant<int, 128>{});
    default: return visitor(cuda::std::integral_constant<int, 160>{});
  }
}

//! Calls visitor(head width, a State) with both as types; states are T or float.
template <class T, class Visitor>
status dispatch_tensor(std::int64_t head_width, element state, Visitor&& visitor) noexcept
{
  return dispatch_head_width(head_width, [&](auto width) {
    return state == element_of<T>::value ? visitor(width, T{}) : visitor(width, float{});
  });
}

[[nodiscard]] inline bool is_aligned_16(const void* pointer) noexcept
{
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

//! Rows that have kernels on tensor cores.
template <class T>
inline constexpr bool has_tensor_rows = sizeof(T) == 2;

//! Whether every position of a matrix of T, a 16-bit type, starts at a multiple of 16 bytes.
template <class T, class Matrix>
[[nodiscard]] bool is_tensor_matrix(const Matrix& matrix) noexcept
{
  return matrix.type == element_of<T>::value && is_aligned_16(matrix.data) &&
         matrix.position_stride % 8 == 0;
}

template <class T>
[[nodiscard]] bool are_tensor_rows(const const_rows<T>& rows, int count,
                                   std::int64_t positions) noexcept
{
  return block::is_strided(rows, count) && block::rows_are_aligned(rows, count, positions);
}

//! Distance between rows that are strided: also of a list at equal distances.
template <class T>
[[nodiscard]] std::int64_t stride_of(const const_rows<T>& rows, int count) noexcept
{
  return block::make_row_pointers<T, 0>(rows, count).row_stride;
}

template <class Accumulate>
[[nodiscard]] bool are_tensor_sites(const folded_sites<Accumulate>& sites) noexcept
{
  return sites.packed != nullptr && is_aligned_16(sites.packed) && sites.bias == nullptr &&
         sites.rounding == key_rounding::none;
}

//! States of a pass that needs any.
[[nodiscard]] inline bool are_tensor_states(const void* states, std::int64_t slot_stride) noexcept
{
  return states == nullptr || (is_aligned_16(states) && slot_stride % 8 == 0);
}

//! Positions per block when `clusters` of them run at once: the fewest waves of at most `most`.
[[nodiscard]] inline std::int64_t positions_per_block(std::int64_t positions, int clusters,
                                                      std::int64_t most) noexcept
{
  const std::int64_t waves = (positions + clusters * most - 1) / (clusters * most);
  return (positions + clusters * waves - 1) / (clusters * waves);
}

//! Positions of a block whose clusters have `num_heads` of them. A block adds to a chunk of the partial sums of its own: there are
//! no more blocks than chunks.
[[nodiscard]] inline std::int64_t gathered_positions(std::int64_t positions, int num_heads,
                                                     bool is_segmented,
                                                     const device_properties& properties) noexcept
{
  using policy = tuning::sweep_policy;
  const int chunks = chunks_of(shape{positions});
  const int clusters =
      (std::min)(policy::num_clusters(properties.multiprocessors, num_heads), chunks);
  const std::int64_t blocks = std::int64_t{clusters} * (chunks / clusters);
  const std::int64_t most =
      (std::max)((positions + blocks - 1) / blocks, std::int64_t{policy::max_segmented_positions});
  const std::int64_t each =
      positions_per_block(positions, clusters, is_segmented ? most : positions);
  return each < 8 ? 8 : each;
}

//! As many positions under way as shared memory has room for, up to `most`; one if it has none.
template <class Bytes>
[[nodiscard]] int slots_with_room(int most, const device_properties& properties,
                                  const Bytes& bytes_of) noexcept
{
  int slots = most;
  while (slots > 1 && !has_room(properties, bytes_of(slots))) { --slots; }
  return slots;
}

//! Calls of a segment where there are more chunks of 16 than a block of gather_tiles or gather_groups has registers for: segments of equal length.
[[nodiscard]] inline int calls_per_segment(int chunks) noexcept
{
  constexpr int most = tuning::sweep_policy::segment_chunks;
  const int segments = (chunks + most - 1) / most;
  return (chunks + segments - 1) / segments * 16;
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
