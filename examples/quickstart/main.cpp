// SPDX-License-Identifier: Apache-2.0
//! The quickstart: a small Transformer on real text, trained with three residual schemes.
//!
//! Read on in this order: text, tensor, attention, mlp, residual, routed_residual, model, adamw,
//! training; then gradient_check, depth_map and picture.
#include "options.hpp"
#include "picture.hpp"
#include "training.hpp"

#include <mhar/status.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <fstream>

namespace quickstart {
namespace {

//! More threads than this have too little to do each.
constexpr unsigned most_threads = 4;

//! Found out now rather than after a minute of training; a file that is there already is left as it
//! is.
void require_writable(const std::string& path)
{
  if (!std::ofstream{path, std::ios::app}) {
    throw std::runtime_error("cannot write the picture to \"" + path +
                             "\"; choose another place with --output");
  }
}

void print_table(const std::vector<training_result>& results, double num_characters)
{
  std::printf("%-24s %15s %16s %14s\n", "", "validation loss", "time in routing", "characters/s");
  for (const training_result& each : results) {
    std::printf("%-24s %15.6f %15.1f%% %14.0f\n", each.name.c_str(), each.validation_loss,
                100 * each.routing_seconds / each.seconds, num_characters / each.seconds);
  }
  std::printf(
      "\nSeeds move these losses by some hundredths: this shows how the schemes work, not which is "
      "best.\n");
}

void print_heading(const training_plan& plan, const corpus& texts, int num_threads)
{
  const model_shape& shape = plan.shape;
  std::printf(
      "text      %d files: %zu characters to train on, %zu to validate, %d different ones\n",
      texts.num_files, texts.training.size(), texts.validation.size(), shape.alphabet);
  std::printf("model     %d layers, width %d: %d routing calls, the last one over %d rows\n",
              shape.num_layers, shape.width, shape.num_calls(), shape.num_calls());
  std::printf("training  %d steps of %d x %d characters, three times; seed %llu, threads %d\n\n",
              plan.num_steps, shape.num_sequences, shape.context,
              static_cast<unsigned long long>(plan.seed), num_threads);
}

//! The losses in one line, for the picture.
std::string summary(const std::vector<training_result>& results)
{
  std::string line = "Validation loss:";
  for (const training_result& each : results) {
    std::array<char, 96> entry{};
    std::snprintf(entry.data(), entry.size(), " %s %.4f,", each.name.c_str(), each.validation_loss);
    line += entry.data();
  }
  line.pop_back();
  return line;
}

void run_all(const options& chosen)
{
  training_plan plan;
  plan.shape.num_layers = chosen.num_layers;
  plan.shape.width = chosen.width;
  plan.num_steps = chosen.num_steps;
  plan.seed = chosen.seed;
  const Eigen::Index num_positions = plan.shape.num_positions();
  const corpus texts = read_texts(chosen.texts, static_cast<std::size_t>(num_positions + 1));
  plan.shape.alphabet = static_cast<int>(texts.alphabet.size());
  require_writable(chosen.picture);

  mhar::cpu::thread_pool pool{std::clamp(std::thread::hardware_concurrency(), 1U, most_threads)};
  print_heading(plan, texts, pool.num_threads());
  std::vector<training_result> results;
  std::printf("1/3 plain residual: every sublayer reads the sum of all outputs before it\n");
  results.push_back(train_plain(pool.get(), plan, texts));
  std::printf("2/3 single-head routing: a learned mean of them instead\n");
  results.push_back(train_routed(pool.get(), plan, texts, 1));
  std::printf("3/3 multi-head routing: %d slices of the width, each with a mean of its own\n",
              chosen.num_heads);
  results.push_back(train_routed(pool.get(), plan, texts, chosen.num_heads));

  print_table(results, static_cast<double>(plan.num_steps) * static_cast<double>(num_positions));
  write_picture(chosen.picture, summary(results),
                {{results[1].name, &*results[1].map}, {results[2].name, &*results[2].map}});
  std::printf("The learned routing, head by depth, is drawn in %s.\n", chosen.picture.c_str());
}

}  // namespace
}  // namespace quickstart

int main(int argc, char** argv)
{
  try {
    const quickstart::options chosen = quickstart::parse_options({argv + 1, argv + argc});
    if (chosen.help) {
      std::fputs(quickstart::usage().c_str(), stdout);
      return 0;
    }
    quickstart::run_all(chosen);
    return 0;
  } catch (const quickstart::bad_usage& problem) {
    std::fprintf(stderr, "mhar_quickstart: %s (see --help)\n", problem.what());
    return 2;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "mhar_quickstart: %s\n", problem.what());
    return 1;
  }
}
