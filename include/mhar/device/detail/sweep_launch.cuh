// SPDX-License-Identifier: Apache-2.0
//! What the launchers of the sweeps' verbs share: views of a range of rows, chunks, and scratch
//! memory.
#pragma once

#include <mhar/device/detail/check_problem.cuh>
#include <mhar/device/detail/launch.cuh>

#include <algorithm>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Threads of the kernels that serve every shape, and row pointers that travel in their parameters.
inline constexpr int sweep_threads = 256;
inline constexpr int sweep_list = 1000;

//! Rows [first, ...) of a view as rows 0, 1, ...
template <class T>
[[nodiscard]] const_rows<T> rows_from(const const_rows<T>& rows, int first) noexcept
{
  if (rows.list != nullptr) { return {nullptr, 0, rows.position_stride, rows.list + first}; }
  return {rows.base + first * rows.row_stride, rows.row_stride, rows.position_stride, nullptr};
}

template <class T>
[[nodiscard]] status check_list(const const_rows<T>& rows, int count, const char* name) noexcept
{
  if (count <= sweep_list || block::is_strided(rows, count)) { return {}; }
  return {code::unsupported, name, "more listed rows at unequal distances than a kernel takes", 0};
}

//! A tile of tensor cores is 8 positions; more than 256 chunks would cost more memory than they
//! give speed.
[[nodiscard]] inline int chunks_of(const shape& extent) noexcept
{
  constexpr std::int64_t tile = 8;
  constexpr std::int64_t most = 256;
  const std::int64_t tiles = (extent.num_positions + tile - 1) / tile;
  return static_cast<int>(tiles < 1 ? 1 : tiles > most ? most : tiles);
}

//! Partial sums over other chunks cannot be added to.
template <class Accumulate>
[[nodiscard]] status check_chunks(const gradient_partials<Accumulate>& partials,
                                  const shape& extent) noexcept
{
  const bool any = partials.query != nullptr || partials.bias != nullptr ||
                   partials.null_source != nullptr || partials.gate != nullptr ||
                   partials.output_norm != nullptr;
  if (!any || partials.num_chunks == chunks_of(extent)) { return {}; }
  return {code::bad_shape, "partials.num_chunks",
          "the number of chunks is not the one that num_chunks gives", 0};
}

//! How many blocks find `elements` of scratch each in the workspace, at most `wanted`.
template <class Accumulate>
[[nodiscard]] std::int64_t blocks_with_scratch(const context& where, std::int64_t elements,
                                               std::int64_t wanted) noexcept
{
  const auto each = static_cast<std::size_t>(elements) * sizeof(Accumulate);
  const auto fitting =
      static_cast<std::int64_t>(where.workspace == nullptr ? 0 : where.workspace_bytes / each);
  return fitting < wanted ? fitting : wanted;
}

//! Mixes of calls whose ending is a kernel of its own: floats per position, the lse with it, and
//! positions that are worth their memory.
[[nodiscard]] inline std::int64_t unfinished_size(const shape& extent) noexcept
{
  return extent.width + extent.num_heads;
}
inline constexpr std::int64_t unfinished_positions = 2048;

[[nodiscard]] inline status small_workspace() noexcept
{
  return {code::small_workspace, "workspace", "smaller than workspace_bytes(limits)", 0};
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
