// SPDX-License-Identifier: Apache-2.0
//! Matrices of float, trainable parameters, and the operations that several layers share.
#pragma once

#include <mhar/cpu/executor.hpp>

#include <Eigen/Core>

#include <cstdint>
#include <random>
#include <vector>

namespace quickstart {

//! The model runs on the same threads as the library.
using mhar::cpu::executor;

//! Runs body(0) to body(count - 1). Who runs which is left to chance, so each writes to places of
//! its own.
template <class Body>
void for_each(const executor& run, int count, Body body)
{
  run(
      count, [](void* argument, int index) { (*static_cast<Body*>(argument))(index); }, &body);
}

//! Row-major, one row per position: a [positions, width] activation or an [inputs, outputs] weight.
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using vector = Eigen::Matrix<float, Eigen::Dynamic, 1>;
using view = Eigen::Map<matrix>;
using input = const Eigen::Ref<const matrix>&;
using output = Eigen::Ref<matrix>;

//! Whether AdamW pulls a parameter towards zero.
enum class decay
{
  none,
  weight
};

//! A trainable array and its gradient.
struct parameter
{
  matrix value;
  matrix gradient;
  decay kind = decay::none;

  parameter(Eigen::Index rows, Eigen::Index columns, float fill = 0, decay how = decay::none)
      : value{matrix::Constant(rows, columns, fill)},
        gradient{matrix::Zero(rows, columns)},
        kind{how}
  {
  }
};

//! Normal random numbers that are the same with every standard library, unlike
//! std::normal_distribution.
class random_normal
{
public:
  explicit random_normal(std::uint64_t seed) : engine_{seed} {}
  float operator()();

private:
  std::mt19937_64 engine_;
};

//! A weight matrix that keeps the size of what passes through it: normal, variance gain^2 / inputs.
[[nodiscard]] parameter make_weight(Eigen::Index inputs, Eigen::Index outputs,
                                    random_normal& random, double gain = 1);

//! Work is always cut into the same parts, so that results have the same bits with any number of
//! threads.
constexpr int num_parts = 4;
struct part
{
  Eigen::Index first;
  Eigen::Index count;
};
[[nodiscard]] part part_of(Eigen::Index total, int index);

//! out = x w
void multiply(const executor& run, input x, input w, output out);
//! dx = dout w^T
void multiply_transposed(const executor& run, input dout, input w, output dx);
//! dw += x^T dout
void add_weight_gradient(const executor& run, input x, input dout, output dw);

//! RMSNorm with a gain: y = x * r * gain, r = (mean(x^2) + eps)^-1/2 over each row.
class rms_norm
{
public:
  rms_norm(Eigen::Index num_positions, Eigen::Index width);
  void forward(const executor& run, input x, output y);
  //! Needs the x of the last forward again; writes dx and adds to the gain's gradient.
  void backward(const executor& run, input x, input dy, output dx);
  [[nodiscard]] parameter& gain() { return gain_; }

private:
  parameter gain_;
  vector inverse_rms_;
};

//! Softmax and mean negative log-likelihood: returns the loss and turns the logits into their
//! gradient.
[[nodiscard]] double cross_entropy(const executor& run, output logits,
                                   const std::vector<int>& targets);

}  // namespace quickstart
