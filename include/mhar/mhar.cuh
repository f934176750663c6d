// SPDX-License-Identifier: Apache-2.0
//! Everything for the CUDA compiler: all of mhar.hpp, the block collectives and the launchers.
#pragma once

#if !defined(__CUDACC__)
#  error "mhar/mhar.cuh is for .cu files and nvcc: a C++ compiler takes mhar/mhar.hpp"
#endif

#include <mhar/block/advance_any.cuh>
#include <mhar/block/advance_rows.cuh>
#include <mhar/block/advance_tiles.cuh>
#include <mhar/block/advance_tiles_layout.cuh>
#include <mhar/block/advance_wide.cuh>
#include <mhar/block/end_call.cuh>
#include <mhar/block/finish_rows.cuh>
#include <mhar/block/fold_sites.cuh>
#include <mhar/block/gather_any.cuh>
#include <mhar/block/gather_calls.cuh>
#include <mhar/block/gather_groups.cuh>
#include <mhar/block/gather_groups_layout.cuh>
#include <mhar/block/gather_tiles.cuh>
#include <mhar/block/gather_tiles_layout.cuh>
#include <mhar/block/gather_wide.cuh>
#include <mhar/block/head_router.cuh>
#include <mhar/block/output_gradient_any.cuh>
#include <mhar/block/output_gradient_columns.cuh>
#include <mhar/block/output_gradient_heads.cuh>
#include <mhar/block/output_gradient_normed.cuh>
#include <mhar/block/output_gradient_wide.cuh>
#include <mhar/block/parameter_sums.cuh>
#include <mhar/block/reduce_sites.cuh>
#include <mhar/block/route_gradient.cuh>
#include <mhar/block/route_gradient_params.cuh>
#include <mhar/block/route_parameters.cuh>
#include <mhar/block/row_pointers.cuh>
#include <mhar/block/sweep_tensor_params.cuh>
#include <mhar/block/sweep_wide_params.cuh>
#include <mhar/device/backend.cuh>
#include <mhar/device/context.cuh>
#include <mhar/device/instantiate.cuh>
#include <mhar/device/merge.cuh>
#include <mhar/device/route.cuh>
#include <mhar/device/route_gradient.cuh>
#include <mhar/device/sweep.cuh>
#include <mhar/kernel/merge.cuh>
#include <mhar/kernel/route.cuh>
#include <mhar/kernel/route_gradient.cuh>
#include <mhar/kernel/route_resident.cuh>
#include <mhar/kernel/route_warp.cuh>
#include <mhar/mhar.hpp>
#include <mhar/tuning/route.hpp>
#include <mhar/tuning/route_gradient.hpp>
#include <mhar/tuning/route_resident.hpp>
#include <mhar/tuning/route_warp.hpp>
#include <mhar/tuning/sweep.hpp>
