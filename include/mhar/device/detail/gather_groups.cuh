// SPDX-License-Identifier: Apache-2.0
//! Launches a backward pass by warpgroups, where the program has code for them.
#pragma once

#include <mhar/device/detail/sweep_tensor.cuh>
#include <mhar/device/detail/tensor_map.cuh>
#include <mhar/kernel/sweep_groups.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Whether the code that the current device runs of a kernel takes blocks of so many threads, with so many registers each: they
//! could not be moved between warpgroups otherwise.
template <class... Parameters>
[[nodiscard]] bool takes_threads(void (*kernel)(Parameters...), int threads, int registers) noexcept
{
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  return attributes.maxThreadsPerBlock >= threads && attributes.numRegs == registers;
}

template <int HeadWidth, int Chunks, bool Segmented>
[[nodiscard]] status launch_gather_groups(block::gather_tensor_params<bfloat16> pass,
                                          const device_properties& properties,
                                          const context& where) noexcept
{
  using layout = block::gather_groups_layout<bfloat16, HeadWidth, Chunks>;
  using gather = block::gather_groups<bfloat16, HeadWidth, Chunks, Segmented>;
  const auto kernel = &kernel::gather_groups_kernel<bfloat16, HeadWidth, Chunks, Segmented>;

  const std::int64_t positions =
      gathered_positions(pass.num_positions, pass.num_heads, Segmented, properties);
  constexpr std::int64_t many = std::int64_t{1} << 20;
  if (positions > many) { return not_served(); }
  pass.positions_per_block = static_cast<int>(positions);
  const auto bytes_of = [&](int slots) {
    return layout{pass.num_heads, slots, Segmented ? pass.positions_per_block : 0}.total;
  };
  pass.num_slots = slots_with_room(layout::max_slots, properties, bytes_of);
  if (pass.num_slots < gather::least_slots) { return not_served(); }

  mapped_rows calls;
  calls.data = pass.call_gradients;
  calls.row_stride = pass.call_stride;
  calls.position_stride = pass.num_positions > 1 ? pass.call_position_stride : pass.width;
  calls.num_rows = pass.num_calls;
  calls.num_positions = pass.num_positions;
  calls.width = pass.width;
  calls.line = layout::line_bytes / 2;
  block::detail::tensor_map map;
  if (!can_be_mapped(calls) || !takes_threads(kernel, gather::num_threads, gather::registers) ||
      !encode(calls, 16 * Chunks, layout::tiles, map)) {
    return not_served();
  }

  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(pass.num_heads),
                    static_cast<unsigned>((pass.num_positions + positions - 1) / positions));
  shape.block = gather::num_threads;
  shape.shared_memory = static_cast<std::size_t>(bytes_of(pass.num_slots));
  shape.cluster = static_cast<unsigned>(pass.num_heads);
  return launch(where, properties, shape, kernel, pass, map);
}

//! More than 16 calls, in segments as those of gather_tiles; not_served() where that kernel is faster, or the only one.
//! Both have the same bits.
template <int HeadWidth>
[[nodiscard]] status gather_by_groups(block::gather_tensor_params<bfloat16> pass,
                                      const device_properties& properties,
                                      const context& where) noexcept
{
  using policy = tuning::sweep_policy;
  if (properties.capability != 90 ||
      !policy::is_for_groups(HeadWidth, pass.num_calls, pass.num_rows, pass.kept)) {
    return not_served();
  }
  const int chunks = (pass.num_calls + 15) / 16;
  if (chunks > policy::segment_chunks) {
    pass.calls_per_segment = calls_per_segment(chunks);
    return pass.calls_per_segment == 48
               ? launch_gather_groups<HeadWidth, 3, true>(pass, properties, where)
               : launch_gather_groups<HeadWidth, 4, true>(pass, properties, where);
  }
  pass.calls_per_segment = pass.num_calls;
  return dispatch_at_least<2, 3, 4>(chunks, not_served(), [&](auto count) {
    return launch_gather_groups<HeadWidth, decltype(count)::value, false>(pass, properties, where);
  });
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
