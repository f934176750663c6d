// SPDX-License-Identifier: Apache-2.0
//! Somebody's CUDA program: it compiles against everything; without a GPU it has nothing to launch.
#include <mhar/mhar.cuh>

int main() { return mhar::status{}.ok() ? 0 : 1; }
