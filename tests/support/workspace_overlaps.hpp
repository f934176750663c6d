// SPDX-License-Identifier: Apache-2.0
//! A workspace that lies over an array of the call: refused with nothing written, whatever backend runs it.
#pragma once

#include "fuzz/problem_memory.hpp"
#include "support/call_case.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

namespace mhar_test {

template <class T>
call_options<T> every_option()
{
  call_options<T> options;
  options.null_source = options.bias = options.partial = options.gate = true;
  options.norm = mhar::output_norm::rms;
  options.combined_upstream = true;
  options.row_gradients = row_layout::listed;
  return options;
}

//! `run(problem, workspace, bytes)` gives the problem to its verb and waits. Each array takes its turn to be the workspace.
template <class Problem, class Arena, class Run>
void refuses_each_array(Problem& problem, const Arena& arena, const Run& run)
{
  const std::vector<unsigned char> before(arena.data(), arena.data() + Arena::all_bytes);
  for (const std::int64_t start : problem_memory{problem}.starts(arena)) {
    CAPTURE(start);
    const mhar::status outcome = run(problem, arena.data() + start, 1);
    CHECK(outcome.code == mhar::code::aliasing);
    CHECK(std::string{outcome.argument} != "");
    CHECK(std::string{outcome.message} == "the workspace overlaps it");
    CHECK(std::memcmp(arena.data(), before.data(), before.size()) == 0);
  }
}

//! Memory(bytes) owns bytes that the host and the backend reach at data().
template <class T, class Memory, class Run>
void refuses_workspace_over_arrays(random_inputs& random, const Run& run)
{
  const call_options<T> options = every_option<T>();
  call_case<T> data{options, random};
  fuzz_arena<Memory> forward_arena;
  auto forward = data.forward(forward_arena);
  refuses_each_array(forward.problem, forward_arena, run);
  fuzz_arena<Memory> backward_arena;
  auto backward = data.backward(backward_arena);
  refuses_each_array(backward.problem, backward_arena, run);

  const placement where = matrix_of(options.extent.num_positions, options.extent.width);
  tensor delta{options.activations, where};
  tensor sum{mhar::element_of<T>::value, where};
  tensor copy{mhar::element_of<T>::value, where};
  fuzz_arena<Memory> update_arena;
  auto update = data.update(1, delta, &sum, copy, update_arena);
  refuses_each_array(update.problem, update_arena, run);
}

}  // namespace mhar_test
