// SPDX-License-Identifier: Apache-2.0
//! Routing added to a model that is trained already: in delta mode it starts as the same model, bit
//! for bit.
//!
//! The base model is an ordinary residual stream, x += tanh(scale[c] * x) at sublayer c. After
//! conversion sublayer c reads x + alpha[c] * (a routed mix of what earlier blocks added to x). All
//! alphas, queries and null sources start at zero.
#include <mhar/cpu/aligned_memory.hpp>
#include <mhar/cpu/backend.hpp>
#include <mhar/router/depth_router.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace {

using numbers = std::vector<float>;

constexpr int num_sublayers = 12;
constexpr int sublayers_per_block = 4;
constexpr int width = 16;
constexpr int num_heads = 4;
constexpr int num_positions = 6;
constexpr std::size_t row_size = std::size_t{num_positions} * width;

numbers random_numbers(std::size_t count)
{
  static std::mt19937 engine{1};
  std::normal_distribution<float> normal;
  numbers result(count);
  for (float& number : result) { number = normal(engine); }
  return result;
}

//! The model as it was trained.
struct base_model
{
  numbers embedding = random_numbers(row_size);
  numbers scales = random_numbers(num_sublayers * width);

  //! x += tanh(scale * read); the base model reads x itself.
  void add_sublayer(int sublayer, const float* read, numbers& x) const
  {
    for (std::size_t i = 0; i < row_size; ++i) {
      x[i] += std::tanh(scales[static_cast<std::size_t>(sublayer) * width + i % width] * read[i]);
    }
  }
  [[nodiscard]] numbers run() const
  {
    numbers x = embedding;
    for (int sublayer = 0; sublayer < num_sublayers; ++sublayer) {
      const numbers before = x;
      add_sublayer(sublayer, before.data(), x);
    }
    return x;
  }
};

//! The same model with a routing site before every sublayer.
class converted_model
{
public:
  explicit converted_model(const base_model& base)
      : base_{base}, router_{configure()}, memory_{router_.memory().total}
  {
    mhar::check(router_.bind(memory_.data(), memory_.size()));
  }

  [[nodiscard]] numbers run()
  {
    numbers x = base_.embedding;
    numbers block_start = x;
    numbers read(row_size);
    mhar::check(router_.begin_forward(context_));
    for (int sublayer = 0; sublayer < num_sublayers; ++sublayer) {
      if (sublayer > 0 && sublayer % sublayers_per_block == 0) {
        // What the block has added becomes a row that all later sites can read.
        float* const row = router_.append();
        for (std::size_t i = 0; i < row_size; ++i) { row[i] = x[i] - block_start[i]; }
        block_start = x;
      }
      mhar::call_inputs<float> inputs;
      inputs.partial = {x.data(), width};
      mhar::route_outputs<float> outputs;
      outputs.y = {read.data(), width};
      mhar::check(router_.route(context_, sublayer, inputs, outputs));
      base_.add_sublayer(sublayer, read.data(), x);
    }
    return x;
  }

  numbers alphas = numbers(num_sublayers, 0);
  numbers queries = numbers(num_sublayers * width, 0);
  numbers null_sources = numbers(num_sublayers * width, 0);

private:
  [[nodiscard]] mhar::router_config configure() const
  {
    mhar::router_config config;
    config.extent = {num_positions, width, num_heads};
    config.plan = mhar::streaming_plan(mhar::delta_schedule(num_sublayers, sublayers_per_block));
    config.use = mhar::router_use::inference;
    for (std::size_t sublayer = 0; sublayer < num_sublayers; ++sublayer) {
      mhar::router_site site;
      site.parameters.query = &queries[sublayer * width];
      site.parameters.null_source = &null_sources[sublayer * width];
      site.stage.gate = &alphas[sublayer];
      config.sites.push_back(site);
    }
    return config;
  }

  const base_model& base_;
  mhar::cpu::context context_;
  mhar::depth_router<mhar::cpu::backend, float> router_;
  mhar::cpu::aligned_memory memory_;
};

bool same_bits(const numbers& a, const numbers& b)
{
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

int main()
{
  const base_model base;
  converted_model converted{base};
  const numbers trained = base.run();

  const bool equal = same_bits(converted.run(), trained);
  std::printf("just converted, all gates closed: %s\n",
              equal ? "every bit as the base model" : "NOT the base model");

  // Training would move the gates off zero; moved by hand, the routing takes part.
  for (float& alpha : converted.alphas) { alpha = 0.1F; }
  const bool takes_part = !same_bits(converted.run(), trained);
  std::printf("gates opened to 0.1: %s\n",
              takes_part ? "the sublayers read earlier blocks too" : "NOTHING has changed");
  return equal && takes_part ? 0 : 1;
}
