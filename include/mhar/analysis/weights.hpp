// SPDX-License-Identifier: Apache-2.0
//! The depth weights of one routing call as the analysis reads them: a host view [P, H, N].
#pragma once

#include <mhar/status.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace analysis {

//! Weights as route_outputs::weights holds them, in host memory: source fastest, then head, then
//! position. For every position and head they add up to 1, or are all 0 where no source had weight.
template <class Real>
struct depth_weights
{
  const Real* data = nullptr;
  std::int64_t num_positions = 0;
  int num_heads = 1;
  int num_sources = 1;

  //! The weights of one position and head, [num_sources].
  [[nodiscard]] constexpr const Real* at(std::int64_t position, int head) const noexcept
  {
    return data + (position * num_heads + head) * num_sources;
  }
};

//! Throws invalid_argument for counts that mean nothing, and for weights that are not there.
template <class Real>
void check_weights(const depth_weights<Real>& weights, const char* argument)
{
  if (weights.num_positions < 0 || weights.num_heads < 1 || weights.num_sources < 1) {
    check(status{code::bad_shape, argument,
                 "positions must not be negative; there is at least one head and one source"});
  }
  if (weights.data == nullptr && weights.num_positions > 0) {
    check(status{code::missing_argument, argument, "the weights are required"});
  }
}

}  // namespace analysis
MHAR_NAMESPACE_END
