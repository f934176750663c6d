// SPDX-License-Identifier: Apache-2.0
//! Draws depth maps as an SVG picture: one panel per head, calls downwards, rows to the right.
#pragma once

#include "depth_map.hpp"

#include <string>

namespace quickstart {

//! A scheme's map and what is written above its panels.
struct titled_map
{
  std::string title;
  const depth_map* map;
};

//! The first map has one head. Throws std::runtime_error when the file cannot be written.
void write_picture(const std::string& path, const std::string& subtitle,
                   const std::vector<titled_map>& maps);

}  // namespace quickstart
