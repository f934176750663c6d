// SPDX-License-Identifier: Apache-2.0
//! The CPU backend as one type, for the router.
#pragma once

#include <mhar/cpu/advance.hpp>
#include <mhar/cpu/fold.hpp>
#include <mhar/cpu/gather.hpp>
#include <mhar/cpu/output_gradient.hpp>
#include <mhar/cpu/reduce.hpp>

#include <cstring>

MHAR_NAMESPACE_BEGIN
namespace cpu {

//! What the router calls. The verbs are those of the namespace, documented there.
struct backend
{
  using context = cpu::context;

  template <class T>
  [[nodiscard]] static status fold(const fold_problem<T>& problem, const context& context) noexcept
  {
    return cpu::fold(problem, context);
  }
  template <class T>
  [[nodiscard]] static status advance(const advance_problem<T>& problem,
                                      const context& context) noexcept
  {
    return cpu::advance(problem, context);
  }
  template <class T>
  [[nodiscard]] static status output_gradient(const output_gradient_problem<T>& problem,
                                              const context& context) noexcept
  {
    return cpu::output_gradient(problem, context);
  }
  template <class T>
  [[nodiscard]] static status gather(const gather_problem<T>& problem,
                                     const context& context) noexcept
  {
    return cpu::gather(problem, context);
  }
  template <class T>
  [[nodiscard]] static status reduce(const reduce_problem<T>& problem,
                                     const context& context) noexcept
  {
    return cpu::reduce(problem, context);
  }

  //! Fills `bytes` bytes with zeros.
  [[nodiscard]] static status zero(void* data, std::size_t bytes, const context&) noexcept
  {
    if (bytes > 0) { std::memset(data, 0, bytes); }
    return {};
  }

  //! Chunks of gradient_partials: 1 to 64, from the number of positions alone.
  [[nodiscard]] static int num_chunks(const shape& extent) noexcept
  {
    return detail::num_chunks(extent);
  }

  //! Bytes of folded_sites::packed: the folded arrays themselves serve, so none.
  template <class T>
  [[nodiscard]] static std::size_t packed_bytes(const shape&, int) noexcept
  {
    return 0;
  }

  //! Bytes of workspace that serve every verb within the limits; 0 where they mean nothing.
  template <class T>
  [[nodiscard]] static std::size_t workspace_bytes(const sweep_limits& limits) noexcept
  {
    const shape& extent = limits.extent;
    if (!mhar::detail::has_sizes(extent, (std::min)(limits.max_members, limits.max_range))) {
      return 0;
    }
    return (std::max)({detail::advance_workspace<T>(extent, limits.max_members, limits.max_range),
                       detail::gather_workspace<T>(extent, limits.max_members, limits.max_range),
                       detail::output_gradient_workspace<T>(extent)});
  }
};

}  // namespace cpu
MHAR_NAMESPACE_END
