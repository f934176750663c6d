// SPDX-License-Identifier: Apache-2.0
//! What stands behind gpu.hpp: the library's launchers.
#pragma once

#include "gpu.hpp"

#include <mhar/device/backend.cuh>
#include <mhar/device/route.cuh>
#include <mhar/device/route_gradient.cuh>

namespace mhar_torch::gpu {

inline mhar::device::context on_stream(const context& where) noexcept
{
  return mhar::device::context{static_cast<cudaStream_t>(where.stream), where.workspace,
                               where.workspace_bytes, mhar::device::dependent_launch::programmatic};
}

template <class T>
mhar::status verbs<T>::route(const mhar::route_problem<T>& problem, const context& where) noexcept
{
  return mhar::device::route(problem, on_stream(where));
}
template <class T>
mhar::status verbs<T>::route(const mhar::route_gradient_problem<T>& problem,
                             const context& where) noexcept
{
  return mhar::device::route_gradient(problem, on_stream(where));
}
template <class T>
std::size_t verbs<T>::workspace_bytes(const mhar::route_problem<T>& problem) noexcept
{
  return mhar::device::workspace_bytes(problem, on_stream({}));
}
template <class T>
std::size_t verbs<T>::workspace_bytes(const mhar::route_gradient_problem<T>& problem) noexcept
{
  return mhar::device::workspace_bytes(problem, on_stream({}));
}
template <class T>
mhar::status verbs<T>::fold(const mhar::fold_problem<T>& problem, const context& where) noexcept
{
  return mhar::device::fold(problem, on_stream(where));
}
template <class T>
mhar::status verbs<T>::advance(const mhar::advance_problem<T>& problem,
                               const context& where) noexcept
{
  return mhar::device::advance(problem, on_stream(where));
}
template <class T>
mhar::status verbs<T>::output_gradient(const mhar::output_gradient_problem<T>& problem,
                                       const context& where) noexcept
{
  return mhar::device::output_gradient(problem, on_stream(where));
}
template <class T>
mhar::status verbs<T>::gather(const mhar::gather_problem<T>& problem, const context& where) noexcept
{
  return mhar::device::gather(problem, on_stream(where));
}
template <class T>
mhar::status verbs<T>::reduce(const mhar::reduce_problem<T>& problem, const context& where) noexcept
{
  return mhar::device::reduce(problem, on_stream(where));
}
template <class T>
mhar::status verbs<T>::zero(void* data, std::size_t bytes, const context& where) noexcept
{
  return mhar::device::backend::zero(data, bytes, on_stream(where));
}
template <class T>
int verbs<T>::num_chunks(const mhar::shape& extent) noexcept
{
  return mhar::device::num_chunks(extent);
}
template <class T>
std::size_t verbs<T>::packed_bytes(const mhar::shape& extent, int num_calls) noexcept
{
  return mhar::device::packed_bytes<T>(extent, num_calls);
}
template <class T>
std::size_t verbs<T>::workspace_bytes(const mhar::sweep_limits& limits) noexcept
{
  return mhar::device::workspace_bytes<T>(limits);
}

}  // namespace mhar_torch::gpu
