// SPDX-License-Identifier: Apache-2.0
//! Everything for the CUDA compiler: all of mhar.hpp, the block collectives and the launchers.
#pragma once

#include <mhar/block/row_pointers.cuh>
#include <mhar/device/context.cuh>
#include <mhar/mhar.hpp>
