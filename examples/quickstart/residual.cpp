// SPDX-License-Identifier: Apache-2.0
//! The plain residual stream.
#include "residual.hpp"

namespace quickstart {

plain_residual::plain_residual(const stack_shape& shape)
    : last_call_{shape.num_calls - 1},
      rows_{shape},
      inputs_{shape},
      input_gradients_{shape},
      row_gradients_{shape}
{
}

void plain_residual::forward(int call)
{
  const stopwatch::lap lap{watch_};
  if (call == 0) { inputs_[0] = rows_[0]; }
  else {
    inputs_[call] = inputs_[call - 1] + rows_[call];
  }
}

void plain_residual::backward(int call)
{
  const stopwatch::lap lap{watch_};
  if (call == last_call_) { row_gradients_[call] = input_gradients_[call]; }
  else {
    row_gradients_[call] = row_gradients_[call + 1] + input_gradients_[call];
  }
}

}  // namespace quickstart
