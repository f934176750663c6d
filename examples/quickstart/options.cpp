// SPDX-License-Identifier: Apache-2.0
//! The command line.
#include "options.hpp"

#include "attention.hpp"
#include "text.hpp"

#include <charconv>
#include <limits>

namespace quickstart {
namespace {

std::uint64_t parse_number(const std::string& name, const std::string& text, std::uint64_t least,
                           std::uint64_t most)
{
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < least || value > most) {
    throw bad_usage(name + " takes a whole number from " + std::to_string(least) + " to " +
                    std::to_string(most) + ", not \"" + text + "\"");
  }
  return value;
}

int parse_count(const std::string& name, const std::string& text, int most)
{
  return static_cast<int>(parse_number(name, text, 1, static_cast<std::uint64_t>(most)));
}

void set(options& chosen, const std::string& name, const std::string& value)
{
  if (name == "--steps") { chosen.num_steps = parse_count(name, value, 10'000'000); }
  else if (name == "--seed") {
    chosen.seed = parse_number(name, value, 0, std::numeric_limits<std::uint64_t>::max());
  }
  else if (name == "--layers") {
    chosen.num_layers = parse_count(name, value, 64);
  }
  else if (name == "--width") {
    chosen.width = parse_count(name, value, 4096);
  }
  else if (name == "--heads") {
    chosen.num_heads = parse_count(name, value, 64);
  }
  else if (name == "--output") {
    chosen.picture = value;
  }
  else {
    throw bad_usage("there is no option " + name);
  }
}

}  // namespace

options parse_options(const std::vector<std::string>& arguments)
{
  options chosen;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      chosen.help = true;
      return chosen;
    }
    if (argument.empty() || argument[0] != '-') {
      chosen.texts.push_back(argument);
      continue;
    }
    const std::size_t equals = argument.find('=');
    if (equals != std::string::npos) {
      set(chosen, argument.substr(0, equals), argument.substr(equals + 1));
      continue;
    }
    if (i + 1 == arguments.size()) { throw bad_usage(argument + " needs a value"); }
    set(chosen, argument, arguments[++i]);
  }
  if (chosen.width % attention_head_width != 0) {
    throw bad_usage("--width must be a multiple of " + std::to_string(attention_head_width) +
                    ", the width of an attention head; " + std::to_string(chosen.width) +
                    " is not");
  }
  if (chosen.width % chosen.num_heads != 0) {
    throw bad_usage("--heads must divide the width: " + std::to_string(chosen.width) +
                    " cannot be cut into " + std::to_string(chosen.num_heads) +
                    " equal routing heads");
  }
  if (chosen.texts.empty()) { chosen.texts.emplace_back(default_texts); }
  return chosen;
}

std::string usage()
{
  const options defaults;
  return "usage: mhar_quickstart [options] [text file or folder]...\n"
         "\n"
         "Trains one small character-level Transformer three times on the same text, from the same "
         "start: with the\n"
         "plain residual, with single-head routing over depth, and with multi-head routing.\n"
         "Without a text it reads " +
         std::string{default_texts} +
         ".\n"
         "\n"
         "  --steps N      training steps of each scheme    (" +
         std::to_string(defaults.num_steps) +
         ")\n"
         "  --seed N       of the weights and of the data   (" +
         std::to_string(defaults.seed) +
         ")\n"
         "  --layers N     each an attention and an MLP     (" +
         std::to_string(defaults.num_layers) +
         ")\n"
         "  --width N      numbers per position             (" +
         std::to_string(defaults.width) +
         ")\n"
         "  --heads N      of the multi-head routing        (" +
         std::to_string(defaults.num_heads) +
         ")\n"
         "  --output FILE  the picture of the routing, SVG  (" +
         defaults.picture +
         ")\n"
         "  --help         this text\n";
}

}  // namespace quickstart
