// SPDX-License-Identifier: Apache-2.0
//! The CUDA verbs for rows of float32.
#include "gpu.cuh"

template struct mhar_torch::gpu::verbs<float>;
