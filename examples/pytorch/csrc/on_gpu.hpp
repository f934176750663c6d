// SPDX-License-Identifier: Apache-2.0
//! A CUDA device as a place where operators run: torch's current stream on it.
#pragma once

#include "gpu.hpp"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace mhar_torch {

//! Makes the device current for as long as it lives.
class on_gpu
{
public:
  using backend = gpu::backend;

  explicit on_gpu(at::Device device) : guard_{device} {}

  [[nodiscard]] gpu::context context() const
  {
    gpu::context where;
    where.stream = c10::cuda::getCurrentCUDAStream().stream();
    return where;
  }

  template <class Problem>
  static mhar::status run(const Problem& problem, const gpu::context& where)
  {
    return verbs_of(problem).route(problem, where);
  }
  template <class Problem>
  static std::size_t workspace_bytes(const Problem& problem, const gpu::context&)
  {
    return verbs_of(problem).workspace_bytes(problem);
  }

private:
  template <template <class> class Problem, class T>
  static gpu::verbs<T> verbs_of(const Problem<T>&)
  {
    return {};
  }

  c10::cuda::CUDAGuard guard_;
};

}  // namespace mhar_torch
