// SPDX-License-Identifier: Apache-2.0
//! What the quickstart was asked to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace quickstart {

//! The command line.
struct options
{
  int num_steps = 1200;
  std::uint64_t seed = 1;
  int num_layers = 6;
  int width = 64;
  int num_heads = 4;
  std::string picture = "routing.svg";
  std::vector<std::string> texts;
  bool help = false;
};

//! A command line that cannot be followed; what() says why.
class bad_usage : public std::runtime_error
{
public:
  using std::runtime_error::runtime_error;
};

[[nodiscard]] options parse_options(const std::vector<std::string>& arguments);

//! The text of --help.
[[nodiscard]] std::string usage();

}  // namespace quickstart
