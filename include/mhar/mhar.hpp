// SPDX-License-Identifier: Apache-2.0
//! Everything that any C++17 compiler can use: no CUDA toolkit needed, and no Eigen (the reference is included by itself).
#pragma once

#include <mhar/analysis/disagreement.hpp>
#include <mhar/analysis/heads.hpp>
#include <mhar/analysis/weights.hpp>
#include <mhar/config.hpp>
#include <mhar/cpu/advance.hpp>
#include <mhar/cpu/aligned_memory.hpp>
#include <mhar/cpu/backend.hpp>
#include <mhar/cpu/context.hpp>
#include <mhar/cpu/executor.hpp>
#include <mhar/cpu/fold.hpp>
#include <mhar/cpu/gather.hpp>
#include <mhar/cpu/merge.hpp>
#include <mhar/cpu/output_gradient.hpp>
#include <mhar/cpu/reduce.hpp>
#include <mhar/cpu/route.hpp>
#include <mhar/cpu/route_gradient.hpp>
#include <mhar/router/depth_plan.hpp>
#include <mhar/router/depth_router.hpp>
#include <mhar/router/router_config.hpp>
#include <mhar/status.hpp>
#include <mhar/thread/inverse_rms.hpp>
#include <mhar/thread/multiply_add.hpp>
#include <mhar/thread/softmax_state.hpp>
#include <mhar/thread/vector.hpp>
#include <mhar/thread/width_tree.hpp>
#include <mhar/types/call.hpp>
#include <mhar/types/element.hpp>
#include <mhar/types/options.hpp>
#include <mhar/types/shape.hpp>
#include <mhar/types/sweep.hpp>
#include <mhar/types/update.hpp>
#include <mhar/types/validate.hpp>
#include <mhar/types/view.hpp>
#include <mhar/version.hpp>
