// SPDX-License-Identifier: Apache-2.0
//! The floating-point mode that arithmetic runs in, whatever mode a thread is in.
#pragma once

#include <mhar/config.hpp>

#if defined(__SSE2__)
#  include <xmmintrin.h>
#else
#  include <cfenv>
#endif

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! For its lifetime this thread rounds to nearest and reads and writes subnormal numbers; afterwards its own mode and flags are
//! back. A thread may be set to take subnormals as 0, as any library compiled with -ffast-math does when it is loaded: float16
//! values below 6e-5, gradients say, would then count as 0, and bits would depend on which thread runs a task.
class default_float_mode
{
public:
#if defined(__SSE2__)
  default_float_mode() noexcept : before_{_mm_getcsr()} { _mm_setcsr(0x1f80u); }
  ~default_float_mode() { _mm_setcsr(before_); }
#else
  default_float_mode() noexcept
  {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~default_float_mode() { std::fesetenv(&before_); }
#endif
  default_float_mode(const default_float_mode&) = delete;
  default_float_mode& operator=(const default_float_mode&) = delete;
  default_float_mode(default_float_mode&&) = delete;
  default_float_mode& operator=(default_float_mode&&) = delete;

private:
#if defined(__SSE2__)
  unsigned int before_;
#else
  std::fenv_t before_;
#endif
};

}  // namespace cpu::detail
MHAR_NAMESPACE_END
