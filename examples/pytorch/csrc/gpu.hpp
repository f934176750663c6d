// SPDX-License-Identifier: Apache-2.0
//! The verbs of the CUDA backend behind plain functions, so that torch's headers meet g++ alone and
//! the library's kernels nvcc alone.
#pragma once

#include <mhar/status.hpp>
#include <mhar/types/call.hpp>
#include <mhar/types/sweep.hpp>

#include <cstddef>

namespace mhar_torch::gpu {

struct context
{
  void* stream = nullptr;  //!< a cudaStream_t
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

//! One file compiles them for one element type.
template <class T>
struct verbs
{
  using status = mhar::status;
  static status route(const mhar::route_problem<T>& problem, const context& where) noexcept;
  static status route(const mhar::route_gradient_problem<T>& problem,
                      const context& where) noexcept;
  static std::size_t workspace_bytes(const mhar::route_problem<T>& problem) noexcept;
  static std::size_t workspace_bytes(const mhar::route_gradient_problem<T>& problem) noexcept;

  static status fold(const mhar::fold_problem<T>& problem, const context& where) noexcept;
  static status advance(const mhar::advance_problem<T>& problem, const context& where) noexcept;
  static status output_gradient(const mhar::output_gradient_problem<T>& problem,
                                const context& where) noexcept;
  static status gather(const mhar::gather_problem<T>& problem, const context& where) noexcept;
  static status reduce(const mhar::reduce_problem<T>& problem, const context& where) noexcept;
  static status zero(void* data, std::size_t bytes, const context& where) noexcept;
  static int num_chunks(const mhar::shape& extent) noexcept;
  static std::size_t packed_bytes(const mhar::shape& extent, int num_calls) noexcept;
  static std::size_t workspace_bytes(const mhar::sweep_limits& limits) noexcept;
};

//! What the router calls.
struct backend
{
  using context = gpu::context;
  using status = mhar::status;

  template <class T>
  static status fold(const mhar::fold_problem<T>& problem, const context& where) noexcept
  {
    return verbs<T>::fold(problem, where);
  }
  template <class T>
  static status advance(const mhar::advance_problem<T>& problem, const context& where) noexcept
  {
    return verbs<T>::advance(problem, where);
  }
  template <class T>
  static status output_gradient(const mhar::output_gradient_problem<T>& problem,
                                const context& where) noexcept
  {
    return verbs<T>::output_gradient(problem, where);
  }
  template <class T>
  static status gather(const mhar::gather_problem<T>& problem, const context& where) noexcept
  {
    return verbs<T>::gather(problem, where);
  }
  template <class T>
  static status reduce(const mhar::reduce_problem<T>& problem, const context& where) noexcept
  {
    return verbs<T>::reduce(problem, where);
  }
  static status zero(void* data, std::size_t bytes, const context& where) noexcept
  {
    return verbs<float>::zero(data, bytes, where);
  }
  static int num_chunks(const mhar::shape& extent) noexcept
  {
    return verbs<float>::num_chunks(extent);
  }
  template <class T>
  static std::size_t packed_bytes(const mhar::shape& extent, int num_calls) noexcept
  {
    return verbs<T>::packed_bytes(extent, num_calls);
  }
  template <class T>
  static std::size_t workspace_bytes(const mhar::sweep_limits& limits) noexcept
  {
    return verbs<T>::workspace_bytes(limits);
  }
};

}  // namespace mhar_torch::gpu
