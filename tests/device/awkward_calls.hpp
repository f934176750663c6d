// SPDX-License-Identifier: Apache-2.0
//! Calls that break kernels: every option at once, at widths that suit no vector, warp or block.
#pragma once

#include "support/call_options.hpp"

namespace mhar_test {

template <class T>
call_options<T> with_everything(std::int64_t num_positions, std::int64_t width, int num_heads,
                                int num_rows)
{
  call_options<T> options;
  options.extent = {num_positions, width, num_heads, 0};
  options.num_rows = num_rows;
  options.null_source = true;
  options.bias = true;
  options.partial = true;
  options.gate = true;
  options.norm = mhar::output_norm::rms;
  options.combined_upstream = true;
  return options;
}

struct awkward
{
  std::int64_t width;
  int num_heads;
};
inline constexpr awkward awkward_shapes[] = {
    {1, 1},    {7, 1},     {7, 7},    {80, 8},    {96, 32},    {100, 4},   {100, 10},  {111, 3},
    {160, 1},  {256, 256}, {769, 1},  {896, 8},   {1200, 8},   {1280, 8},  {1280, 20}, {3584, 28},
    {4096, 8}, {7168, 1},  {7168, 8}, {7168, 56}, {12288, 96}, {16384, 16}};

}  // namespace mhar_test
