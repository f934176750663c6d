// SPDX-License-Identifier: Apache-2.0
//! One backward call at the sizes of training: all gradients, given lse and mix, row gradients
//! stored in bfloat16.
#include "support/backward_call.cuh"
#include "support/timed_calls.cuh"

namespace {

const bool registered = mhar_bench::register_calls<mhar_bench::backward_call>("call/backward");

}  // namespace
