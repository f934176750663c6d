// SPDX-License-Identifier: Apache-2.0
//! How sublayers get their inputs from what was written before them; here the plain way: adding
//! everything up.
//!
//! Row 0 is the embedding, row n the output of sublayer n-1. Call c makes the input of sublayer c
//! from rows 0..c; the last call makes the input of the output layer. plain_residual and
//! routed_residual have the same members, so that a model is written once for both. The order of a
//! pass:
//!
//!   begin_forward, row(0) is written
//!   for c = 0 .. S-1:    forward(c), input_of(c) is read, row(c+1) is written
//!   begin_backward
//!   for c = S-1 .. 0:    input_gradient(c) is written, backward(c), row_gradient(c) is read
//!   finish_backward
#pragma once

#include "stopwatch.hpp"
#include "tensor.hpp"

namespace quickstart {

//! Extents of a stack: S rows and as many calls, each [P, d].
struct stack_shape
{
  Eigen::Index num_positions;
  Eigen::Index width;
  int num_calls;
};

//! S matrices [P, d], one after another in memory.
class matrix_stack
{
public:
  explicit matrix_stack(const stack_shape& shape)
      : num_positions_{shape.num_positions},
        all_(shape.num_calls * shape.num_positions, shape.width)
  {
  }
  [[nodiscard]] view operator[](int index)
  {
    return {all_.data() + index * num_positions_ * all_.cols(), num_positions_, all_.cols()};
  }

private:
  Eigen::Index num_positions_;
  matrix all_;
};

//! The residual stream of every Transformer: an input is the sum of all rows so far.
class plain_residual
{
public:
  explicit plain_residual(const stack_shape& shape);

  void begin_forward() {}
  [[nodiscard]] view row(int n) { return rows_[n]; }
  void forward(int call);
  [[nodiscard]] view input_of(int call) { return inputs_[call]; }

  void begin_backward() {}
  [[nodiscard]] view input_gradient(int call) { return input_gradients_[call]; }
  void backward(int call);
  [[nodiscard]] view row_gradient(int n) { return row_gradients_[n]; }
  void finish_backward() {}

  [[nodiscard]] std::vector<parameter*> parameters() { return {}; }
  [[nodiscard]] double seconds() const { return watch_.seconds(); }

private:
  int last_call_;
  matrix_stack rows_;
  matrix_stack inputs_;
  matrix_stack input_gradients_;
  matrix_stack row_gradients_;
  stopwatch watch_;
};

}  // namespace quickstart
