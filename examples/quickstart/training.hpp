// SPDX-License-Identifier: Apache-2.0
//! Trains a model with one residual scheme, says how it goes, and measures the result.
#pragma once

#include "depth_map.hpp"
#include "model.hpp"
#include "routed_residual.hpp"

#include <optional>
#include <stdexcept>
#include <string>

namespace quickstart {

//! What is the same for all schemes.
struct training_plan
{
  model_shape shape;
  int num_steps = 0;
  std::uint64_t seed = 0;
};

//! What came out.
struct training_result
{
  std::string name;
  double validation_loss = 0;
  double seconds = 0;          //!< of the training steps
  double routing_seconds = 0;  //!< of those, in the residual scheme
  std::optional<depth_map> map;
};

//! The routing's gradients differ from the reference's.
class wrong_gradients : public std::runtime_error
{
public:
  using std::runtime_error::runtime_error;
};

//! Throws wrong_gradients.
[[nodiscard]] training_result train_plain(const executor& run, const training_plan& plan,
                                          const corpus& texts);
[[nodiscard]] training_result train_routed(const executor& run, const training_plan& plan,
                                           const corpus& texts, int num_heads);

}  // namespace quickstart
