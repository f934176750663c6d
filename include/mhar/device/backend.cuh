// SPDX-License-Identifier: Apache-2.0
//! The CUDA backend as one type, for the router.
#pragma once

#include <mhar/device/sweep.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN

//! What the router calls. The verbs are those of the namespace, documented there.
struct backend
{
  using context = device::context;

  template <class T>
  [[nodiscard]] static status fold(const fold_problem<T>& problem, const context& where) noexcept
  {
    return device::fold(problem, where);
  }
  template <class T>
  [[nodiscard]] static status advance(const advance_problem<T>& problem,
                                      const context& where) noexcept
  {
    return device::advance(problem, where);
  }
  template <class T>
  [[nodiscard]] static status output_gradient(const output_gradient_problem<T>& problem,
                                              const context& where) noexcept
  {
    return device::output_gradient(problem, where);
  }
  template <class T>
  [[nodiscard]] static status gather(const gather_problem<T>& problem,
                                     const context& where) noexcept
  {
    return device::gather(problem, where);
  }
  template <class T>
  [[nodiscard]] static status reduce(const reduce_problem<T>& problem,
                                     const context& where) noexcept
  {
    return device::reduce(problem, where);
  }

  //! Fills `bytes` bytes with zeros, in the context's stream.
  [[nodiscard]] static status zero(void* data, std::size_t bytes, const context& where) noexcept
  {
    if (bytes == 0) { return {}; }
    return detail::failure_of(cudaMemsetAsync(data, 0, bytes, where.stream.get()), "zero");
  }

  [[nodiscard]] static int num_chunks(const shape& extent) noexcept
  {
    return device::num_chunks(extent);
  }
  template <class T>
  [[nodiscard]] static std::size_t packed_bytes(const shape& extent, int num_calls) noexcept
  {
    return device::packed_bytes<T>(extent, num_calls);
  }
  template <class T>
  [[nodiscard]] static std::size_t workspace_bytes(const sweep_limits& limits) noexcept
  {
    return device::workspace_bytes<T>(limits);
  }
};

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
