// SPDX-License-Identifier: Apache-2.0
//! A context of the CPU backend with a workspace of exactly the size that is asked for, poisoned and guarded.
#pragma once

#include "support/guarded.hpp"

#include <mhar/cpu/context.hpp>
#include <mhar/status.hpp>

#include <doctest/doctest.h>

namespace mhar_test {

class cpu_context
{
public:
  explicit cpu_context(std::size_t workspace_bytes, mhar::cpu::executor run = {},
                       std::int64_t offset = 0)
      : workspace_{static_cast<std::int64_t>(workspace_bytes), offset}, run_{run}
  {
  }

  [[nodiscard]] mhar::cpu::context get()
  {
    return {run_, workspace_.data(), static_cast<std::size_t>(workspace_.size())};
  }
  [[nodiscard]] bool guards_intact() const { return workspace_.guards_intact(); }

private:
  guarded<unsigned char> workspace_;
  mhar::cpu::executor run_;
};

//! Runs `verb(problem, context)` with exactly the workspace that workspace_bytes names.
template <class Problem, class Verb>
void run_on_cpu(const Problem& problem, Verb verb, mhar::cpu::executor run = {},
                std::int64_t workspace_offset = 0)
{
  cpu_context context{workspace_bytes(problem, mhar::cpu::context{}), run, workspace_offset};
  const mhar::status outcome = verb(problem, context.get());
  CHECK_MESSAGE(outcome.ok(), outcome.argument, ": ", outcome.message);
  CHECK(context.guards_intact());
}

}  // namespace mhar_test
