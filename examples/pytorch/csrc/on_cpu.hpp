// SPDX-License-Identifier: Apache-2.0
//! The CPU as a place where operators run: torch's own threads.
#pragma once

#include <mhar/cpu/backend.hpp>
#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

namespace mhar_torch {

struct on_cpu
{
  using backend = mhar::cpu::backend;

  explicit on_cpu(at::Device) {}

  [[nodiscard]] mhar::cpu::context context() const
  {
    mhar::cpu::context where;
    where.run.parallel_for = [](void*, int count, mhar::cpu::executor::task task, void* argument) {
      at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) { task(argument, static_cast<int>(i)); }
      });
    };
    return where;
  }

  template <class T>
  static mhar::status run(const mhar::route_problem<T>& problem, const mhar::cpu::context& where)
  {
    return mhar::cpu::route(problem, where);
  }
  template <class T>
  static mhar::status run(const mhar::route_gradient_problem<T>& problem,
                          const mhar::cpu::context& where)
  {
    return mhar::cpu::route_gradient(problem, where);
  }
  template <class Problem>
  static std::size_t workspace_bytes(const Problem& problem, const mhar::cpu::context& where)
  {
    return mhar::cpu::workspace_bytes(problem, where);
  }
};

}  // namespace mhar_torch
