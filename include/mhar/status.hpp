// SPDX-License-Identifier: Apache-2.0
//! What a call answers: success, or a code, the argument it is about and why; `check` turns it into an exception.
#pragma once

#include <mhar/config.hpp>

#include <stdexcept>
#include <string>

#if defined(__GNUC__) && !defined(__CUDACC__) && !defined(__cpp_exceptions)
#  error "mhar needs exceptions (check and constructors throw): compile with -fexceptions"
#endif

MHAR_NAMESPACE_BEGIN

//! The kind of a failure.
enum class code : int
{
  success = 0,
  missing_argument,  //!< a required pointer is null
  bad_shape,   //!< a count, width or number of heads is out of range, or there is no source at all
  bad_stride,  //!< a stride is too small for what it steps over, or negative
  bad_alignment,  //!< a pointer is not a multiple of its element's size
  bad_value,  //!< an option has a value that means nothing (a negative eps, an unknown enumerator)
  aliasing,   //!< an output overlaps a live input or another output
  unsupported,  //!< a valid request that this backend or device cannot serve; nothing smaller is done instead
  small_workspace,  //!< the workspace is missing or smaller than the function that sizes it says
  wrong_order,  //!< a call that the state of the object does not allow (a second backward over consumed rows)
  cuda,       //!< the CUDA runtime refused; status::cuda_error holds its number
  incomplete  //!< an executor did not run each of its tasks once: what the call should have written may hold anything
};

//! The outcome of a host function of the library. Trivially copyable; `argument` and `message` are static strings.
struct [[nodiscard]] status
{
  mhar::code code = code::success;
  const char* argument = "";  //!< the argument or field the failure is about, empty on success
  const char* message = "";   //!< why, in one sentence
  int cuda_error = 0;  //!< the cudaError_t of code::cuda, else 0 (an int: the type needs a toolkit)

  [[nodiscard]] constexpr bool ok() const noexcept { return code == code::success; }
};

//! A refused argument: any code but code::cuda.
class invalid_argument : public std::invalid_argument
{
public:
  explicit invalid_argument(const status& failure)
      : std::invalid_argument("mhar: " + std::string{failure.argument} + ": " + failure.message),
        failure_{failure}
  {
  }
  [[nodiscard]] const status& failure() const noexcept { return failure_; }

private:
  status failure_;
};

//! A call that the CUDA runtime refused.
class cuda_error : public std::runtime_error
{
public:
  explicit cuda_error(const status& failure)
      : std::runtime_error("mhar: " + std::string{failure.argument} + ": " + failure.message +
                           " (CUDA error " + std::to_string(failure.cuda_error) + ")"),
        failure_{failure}
  {
  }
  [[nodiscard]] const status& failure() const noexcept { return failure_; }

private:
  status failure_;
};

//! Throws invalid_argument or cuda_error unless `outcome` is success; for callers who like exceptions.
inline void check(const status& outcome)
{
  if (outcome.ok()) { return; }
  if (outcome.code == code::cuda) { throw cuda_error{outcome}; }
  throw invalid_argument{outcome};
}

MHAR_NAMESPACE_END
