// SPDX-License-Identifier: Apache-2.0
//! Tensor maps: the driver encodes them, and the runtime knows where the driver is.
#pragma once

#include <mhar/block/detail/tensor_copy.cuh>
#include <mhar/types/element.hpp>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cstring>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Rows of bfloat16 as boxes take them: [positions][columns / line][rows][line].
struct mapped_rows
{
  const void* data = nullptr;
  std::int64_t row_stride = 0;  //!< elements, as all here
  std::int64_t position_stride = 0;
  std::int64_t num_rows = 0;
  std::int64_t num_positions = 0;
  std::int64_t width = 0;
  int line = 0;  //!< columns: 64 or 32
};

//! What a map can say: strides are positive and below 2^40 bytes, extents below 2^32.
[[nodiscard]] inline bool can_be_mapped(const mapped_rows& rows) noexcept
{
  constexpr std::int64_t most = std::int64_t{1} << 39;
  return rows.row_stride > 0 && rows.row_stride < most && rows.position_stride > 0 &&
         rows.position_stride < most && rows.num_positions < (std::int64_t{1} << 31);
}

//! A map whose boxes are `tiles` lines' columns of `box_rows` rows of a position, 16-byte vectors permuted as
//! block::gather_groups_layout says. False where the driver has none.
[[nodiscard]] inline bool encode(const mapped_rows& rows, int box_rows, int tiles,
                                 block::detail::tensor_map& result) noexcept
{
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned since = 12000;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, since, cudaEnableDefault,
                                       &found) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) { return false; }

  const auto size = [](std::int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t extents[4] = {size(rows.line), size(rows.num_rows), size(rows.width / rows.line),
                                 size(rows.num_positions)};
  const cuuint64_t strides[3] = {size(2 * rows.row_stride), size(2 * rows.line),
                                 size(2 * rows.position_stride)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(rows.line), static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(tiles), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult encoded = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(rows.data), extents, strides,
      box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      rows.line == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  static_assert(sizeof map == sizeof result, "what the copy engine reads");
  std::memcpy(&result, &map, sizeof result);
  return encoded == CUDA_SUCCESS;
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
