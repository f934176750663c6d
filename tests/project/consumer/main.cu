// SPDX-License-Identifier: Apache-2.0
//! Somebody's CUDA program. A problem that nobody filled is refused before the first CUDA call, so this runs without a GPU.
#include <mhar/mhar.cuh>

#include <cuda_runtime_api.h>

#if !defined(MHAR_CONSUMER_ELEMENT)
#  define MHAR_CONSUMER_ELEMENT mhar::bfloat16
#endif

int main()
{
  const mhar::device::context context{cudaStream_t{nullptr}};
  const mhar::route_problem<MHAR_CONSUMER_ELEMENT> nothing;
  return mhar::device::route(nothing, context).code == mhar::code::bad_shape ? 0 : 1;
}
