// SPDX-License-Identifier: Apache-2.0
//! Real text as numbers.
#include "text.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>

namespace quickstart {
namespace {

namespace fs = std::filesystem;

//! The files that the paths name, each once.
std::vector<fs::path> find_files(const std::vector<std::string>& paths)
{
  std::vector<fs::path> found;
  std::set<fs::path> seen;
  const auto add = [&](const fs::path& path) {
    const fs::path real = fs::canonical(path);
    if (seen.insert(real).second) { found.push_back(real); }
  };
  for (const std::string& path : paths) {
    if (!fs::exists(path)) {
      throw std::runtime_error("there is no file \"" + path +
                               "\"; name one or more text files to train on, or folders of them");
    }
    if (!fs::is_directory(path)) {
      add(path);
      continue;
    }
    std::vector<fs::path> entries;
    for (const fs::directory_entry& entry : fs::directory_iterator{path}) {
      if (entry.is_regular_file()) { entries.push_back(entry.path()); }
    }
    std::sort(entries.begin(), entries.end());
    for (const fs::path& entry : entries) { add(entry); }
  }
  return found;
}

std::string read_file(const fs::path& path)
{
  std::ifstream stream{path, std::ios::binary};
  std::string content{std::istreambuf_iterator<char>{stream}, {}};
  if (!stream) { throw std::runtime_error("cannot read \"" + path.string() + "\""); }
  return content;
}

batch take(const std::vector<int>& text, const std::vector<std::size_t>& starts, int context)
{
  batch taken;
  for (const std::size_t start : starts) {
    const auto first = text.begin() + static_cast<std::ptrdiff_t>(start);
    taken.tokens.insert(taken.tokens.end(), first, first + context);
    taken.targets.insert(taken.targets.end(), first + 1, first + context + 1);
  }
  return taken;
}

}  // namespace

corpus read_texts(const std::vector<std::string>& paths, std::size_t shortest)
{
  corpus texts;
  std::string training;
  std::string validation;
  for (const fs::path& path : find_files(paths)) {
    const std::string content = read_file(path);
    const std::size_t cut = content.size() - content.size() / 10;
    training += content.substr(0, cut);
    validation += content.substr(cut);
    ++texts.num_files;
  }
  if (training.size() < shortest || validation.size() < shortest) {
    throw std::runtime_error(
        "the text is too short: " + std::to_string(training.size() + validation.size()) +
        " characters, where a tenth of every file is kept for validation and that part needs " +
        std::to_string(shortest));
  }

  const std::string all = training + validation;
  const std::set<unsigned char> characters{all.begin(), all.end()};
  texts.alphabet.assign(characters.begin(), characters.end());
  std::array<int, 256> number{};
  for (std::size_t i = 0; i < texts.alphabet.size(); ++i) {
    number[static_cast<unsigned char>(texts.alphabet[i])] = static_cast<int>(i);
  }
  const auto encode = [&](const std::string& from, std::vector<int>& to) {
    for (const char character : from) {
      to.push_back(number[static_cast<unsigned char>(character)]);
    }
  };
  encode(training, texts.training);
  encode(validation, texts.validation);
  return texts;
}

batch batch_sampler::next(int num_sequences, int context)
{
  const std::size_t num_starts = text_.size() - static_cast<std::size_t>(context);
  std::vector<std::size_t> starts(static_cast<std::size_t>(num_sequences));
  for (std::size_t& start : starts) { start = static_cast<std::size_t>(engine_() % num_starts); }
  return take(text_, starts, context);
}

batch batch_at(const std::vector<int>& text, std::size_t start, int num_sequences, int context)
{
  std::vector<std::size_t> starts;
  for (int i = 0; i < num_sequences; ++i) {
    starts.push_back(start + static_cast<std::size_t>(i) * static_cast<std::size_t>(context));
  }
  return take(text, starts, context);
}

}  // namespace quickstart
