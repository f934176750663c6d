// SPDX-License-Identifier: Apache-2.0
//! A status that nobody looks at is a warning, here an error.
// flags: -std=c++17
// expect: nodiscard|unused-result
#include <mhar/status.hpp>

mhar::status refuse();

void call()
{
#if defined(MHAR_WRONG)
  refuse();
#else
  mhar::check(refuse());
#endif
}
