// SPDX-License-Identifier: Apache-2.0
//! Somebody's program: it uses the headers that need no CUDA.
#include <mhar/mhar.hpp>

int main()
{
  mhar::check(mhar::status{});
  return mhar::to_float(mhar::round_to<mhar::bfloat16>(1.0f)) == 1.0f ? 0 : 1;
}
