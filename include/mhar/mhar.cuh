// SPDX-License-Identifier: Apache-2.0
//! Everything for the CUDA compiler: all of mhar.hpp, the block collectives and the launchers.
#pragma once

#include <mhar/mhar.hpp>
