// SPDX-License-Identifier: Apache-2.0
//! A table of spoilt problems: each entry breaks one thing in a valid problem and says how validate must name it.
#pragma once

#include <doctest/doctest.h>
#include <mhar/types/validate.hpp>

#include <functional>
#include <string>
#include <vector>

namespace mhar_test {

template <class Problem, class Memory>
struct refusal
{
  mhar::code expected;
  std::string argument;
  std::function<void(Problem&, Memory&)> spoil;
};

//! `make` builds a valid problem over the buffers of a Memory, a fresh one for every entry.
template <class Problem, class Memory>
void expect_refusals(Problem (Memory::*make)(),
                     const std::vector<refusal<Problem, Memory>>& refusals)
{
  for (const refusal<Problem, Memory>& entry : refusals) {
    CAPTURE(entry.argument);
    Memory buffers;
    Problem problem = (buffers.*make)();
    REQUIRE(std::string{validate(problem).message} == "");
    entry.spoil(problem, buffers);
    const mhar::status answer = validate(problem);
    CHECK(answer.code == entry.expected);
    CHECK(std::string{answer.argument} == entry.argument);
    CHECK_FALSE(std::string{answer.message}.empty());
  }
}

}  // namespace mhar_test
