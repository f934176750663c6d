// SPDX-License-Identifier: Apache-2.0
//! Real text as numbers: files read in a fixed order, a character vocabulary, training and
//! validation parts, batches.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace quickstart {

//! Where Debian keeps the licence texts, the default reading.
constexpr const char* default_texts = "/usr/share/common-licenses";

//! The texts as character numbers. The last tenth of every file is kept for validation.
struct corpus
{
  int num_files = 0;
  std::string alphabet;  //!< every character that occurs, by number
  std::vector<int> training;
  std::vector<int> validation;
};

//! Reads files, and the files of folders in the order of their names; a file that is met twice,
//! under another name or through a link, is read once. Throws std::runtime_error when one cannot be
//! read or a part is shorter than `shortest`.
[[nodiscard]] corpus read_texts(const std::vector<std::string>& paths, std::size_t shortest);

//! Sequences and what should be predicted at each position: the next character.
struct batch
{
  std::vector<int> tokens;   // [sequences, context]
  std::vector<int> targets;  // [sequences, context]
};

//! Draws training sequences at random places: the same seed gives the same batches.
class batch_sampler
{
public:
  batch_sampler(const std::vector<int>& text, std::uint64_t seed) : text_{text}, engine_{seed} {}
  [[nodiscard]] batch next(int num_sequences, int context);

private:
  const std::vector<int>& text_;
  std::mt19937_64 engine_;
};

//! The sequences that follow one another from a place of the text, for validation.
[[nodiscard]] batch batch_at(const std::vector<int>& text, std::size_t start, int num_sequences,
                             int context);

}  // namespace quickstart
