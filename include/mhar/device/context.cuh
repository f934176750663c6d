// SPDX-License-Identifier: Apache-2.0
//! What every verb of the CUDA backend is given besides its problem: a stream, scratch memory, and how to launch.
#pragma once

#include <mhar/types/view.hpp>

#include <cstddef>
#include <cstdint>
#include <cuda/stream_ref>

MHAR_NAMESPACE_BEGIN
namespace device {

//! Whether a kernel may be started before the one in front of it in the stream has ended.
enum class dependent_launch : std::uint8_t
{
  off,
  programmatic  //!< it starts early, and waits before it reads what the one in front writes, or writes itself (compute capability 9.0)
};

//! Trivially copyable. `workspace` is memory of the stream's device, 256-byte aligned, that nobody else uses until the verb's
//! work in the stream is done; workspace_bytes(problem, context) says how much a problem needs. One that is off that boundary, or
//! lies over an array of the problem, is refused. The stream's device has to be the current one, which no verb asks: a launch would
//! go to the stream's device all the same, with a grid and shared memory for the current one.
struct context
{
  cuda::stream_ref stream;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  dependent_launch dependency = dependent_launch::off;

  //! The stream is always named: there is no default one.
  explicit context(cuda::stream_ref stream_of_work, void* memory = nullptr, std::size_t bytes = 0,
                   dependent_launch launch = dependent_launch::off) noexcept
      : stream{stream_of_work}, workspace{memory}, workspace_bytes{bytes}, dependency{launch}
  {
  }

  [[nodiscard]] workspace_view scratch() const noexcept { return {workspace, workspace_bytes}; }
};

}  // namespace device
MHAR_NAMESPACE_END
