// SPDX-License-Identifier: Apache-2.0
//! The shapes that are measured, in one place, and the names they have in the results.
#pragma once

#include <cstdint>
#include <string>

namespace mhar_bench {

//! All routing calls of one microbatch: call c reads rows 0..c, num_calls rows in all.
struct chain_shape
{
  const char* name;
  int num_calls;
  std::int64_t num_positions;
  std::int64_t width;
  int num_heads;
  bool output_norm = false;  //!< an RMSNorm follows every mix
};

inline constexpr chain_shape chain_shapes[] = {
    {"chain/100M", 25, 4096, 512, 4},     {"chain/350M", 49, 1024, 1024, 8},
    {"chain/1B", 73, 1024, 1280, 8},      {"chain/1B-4k", 73, 4096, 1280, 8},
    {"chain/S25", 25, 4096, 1024, 8},     {"chain/S49", 49, 4096, 1024, 8},
    {"chain/S97", 97, 4096, 1024, 8},     {"chain/S193", 193, 4096, 1024, 8},
    {"chain/S49-P256", 49, 256, 1024, 8}, {"chain/S49-P16384", 49, 16384, 1024, 8},
};

//! As in a model that leaves each site's norm to the routing.
inline constexpr chain_shape normed_chain{"chain/1B/norm", 73, 1024, 1280, 8, true};

//! One routing call.
struct call_shape
{
  int num_sources;
  int width;
  int num_heads;
  std::int64_t num_positions;
};

inline constexpr call_shape call_shapes[] = {
    {9, 7168, 1, 16384},
    {9, 4096, 8, 8192},
    {37, 1280, 8, 16384},
    {5, 7168, 1, 4096},
};

inline constexpr call_shape decode_shapes[] = {
    {9, 7168, 1, 1},
    {9, 7168, 1, 16},
    {9, 7168, 1, 128},
    {9, 7168, 8, 1},
};

//! "call/forward/N9-d7168-H1-P16384" from "call/forward".
inline std::string name_of(const std::string& work, const call_shape& shape)
{
  return work + "/N" + std::to_string(shape.num_sources) + "-d" + std::to_string(shape.width) +
         "-H" + std::to_string(shape.num_heads) + "-P" + std::to_string(shape.num_positions);
}

}  // namespace mhar_bench
