// SPDX-License-Identifier: Apache-2.0
//! One forward call at the sizes of training.
#include "support/forward_call.cuh"
#include "support/timed_calls.cuh"

namespace {

const bool registered = mhar_bench::register_calls<mhar_bench::forward_call>("call/forward");

}  // namespace
