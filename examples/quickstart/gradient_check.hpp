// SPDX-License-Identifier: Apache-2.0
//! The routing of one training step beside the reference: the same calls in double precision, one
//! at a time.
#pragma once

#include "routed_residual.hpp"

namespace quickstart {

//! Largest relative errors: of an array, the largest difference over the largest element of the
//! reference.
struct routing_errors
{
  double inputs = 0;  //!< what the calls made
  double rows = 0;    //!< gradients of rows
  double queries = 0;
  double norms = 0;

  [[nodiscard]] double largest() const;
};

//! What 32-bit arithmetic over a whole stack may cost, with room to spare: a wrong formula is off
//! by far more.
constexpr double error_limit = 5e-6;

//! After a backward and before the parameters change.
[[nodiscard]] routing_errors check_routing(routed_residual& residual);

}  // namespace quickstart
