// SPDX-License-Identifier: Apache-2.0
//! What a spoilt problem owes, any verb, any backend: it is refused and nothing is written, or it is served and gives the same
//! bits as with its outputs moved to memory of their own.
#pragma once

#include "fuzz/problem_memory.hpp"
#include "fuzz/seeded.hpp"
#include "fuzz/spoiler.hpp"
#include "support/call_case.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace mhar_test {

[[noreturn]] inline void fuzz_failed(const std::string& what)
{
  std::fprintf(stderr, "fuzz: input %llu: %s\n", static_cast<unsigned long long>(fuzz_input()),
               what.c_str());
  std::abort();
}
inline void fuzz_require(bool holds, const std::string& what)
{
  if (!holds) { fuzz_failed(what); }
}

//! The backend's verb for a problem: the one in the namespace of the context.
template <class T, class Context>
mhar::status call_verb(const mhar::route_gradient_problem<T>& problem, const Context& context)
{
  return route_gradient(problem, context);
}
template <class T, class Context>
mhar::status call_verb(const mhar::merge_problem<T>& problem, const Context& context)
{
  return merge(problem, context);
}
template <class Problem, class Context>
mhar::status call_verb(const Problem& problem, const Context& context)
{
  return route(problem, context);
}

//! Runs a problem that is valid.
template <class Problem, class Backend>
void serve(const Problem& problem, Backend& backend)
{
  const mhar::status outcome = backend.run(problem, backend.workspace(problem));
  fuzz_require(outcome.ok(), std::string{outcome.argument} + ": " + outcome.message);
}

//! How many rows a problem reads, and whether a list of that length says where something is.
struct row_count
{
  int count;
  bool listed;
};
template <class T>
row_count count_rows(const mhar::route_problem<T>& problem)
{
  return {problem.num_rows, problem.rows.list != nullptr};
}
template <class T>
row_count count_rows(const mhar::update_problem<T>& problem)
{
  return count_rows(problem.call);
}
template <class T>
row_count count_rows(const mhar::route_gradient_problem<T>& problem)
{
  return {problem.num_rows, problem.rows.list != nullptr || problem.row_gradients.list != nullptr};
}
template <class T>
row_count count_rows(const mhar::merge_problem<T>& problem)
{
  return {problem.num_parts, problem.parts.list != nullptr};
}

//! What a refusal owes: the verb says what validation says (or the backend itself), in words, and writes nothing.
template <class Problem, class Backend, class Arena>
void check_refusal(const Problem& problem, const mhar::status& valid, Backend& backend,
                   const Arena& arena, const std::vector<unsigned char>& before)
{
  // Without a workspace: what is refused needs none, and a spoilt extent may reach as far as any memory.
  const mhar::status outcome = backend.run_in(problem, nullptr, 0);
  fuzz_require(
      outcome.code == valid.code && std::strcmp(outcome.argument, valid.argument) == 0,
      std::string{"refused for "} + outcome.argument + ", validation says " + valid.argument);
  fuzz_require(valid.argument[0] != 0 && valid.message[0] != 0, "a refusal without words");
  fuzz_require(std::memcmp(arena.data(), before.data(), before.size()) == 0,
               std::string{"refused for "} + valid.argument + ", but something was written");
}

//! Named in the calls of own_lists, so that overloads in this namespace are found.
struct output_lists
{};

//! Lists of outputs that a problem points to, made its own so that its outputs can be moved; they live as long as the result.
template <class Problem>
std::vector<void*> own_lists(output_lists, Problem&)
{
  return {};
}
template <class T>
std::vector<void*> own_lists(output_lists, mhar::route_gradient_problem<T>& problem)
{
  std::vector<void*> list;
  for (int n = 0; problem.row_gradients && n < problem.num_rows; ++n) {
    list.push_back(problem.row_gradients.row(n).data);
  }
  problem.row_gradients.list = list.empty() ? nullptr : list.data();
  if (list.empty()) { problem.row_gradients = {}; }
  return list;
}

//! What is served gives the bits that it gives with every output in memory of its own, and nothing else is written.
template <class T, class Problem, class Backend, class Arena>
void check_service(Problem& problem, Backend& backend, const Arena& arena,
                   const std::vector<unsigned char>& before)
{
  Problem apart = problem;
  const auto lists = own_lists(output_lists{}, apart);
  const problem_memory memory{apart};
  if (!memory.inside(arena)) { return; }
  const std::size_t needed = backend.workspace(problem);
  const std::size_t needed_apart = backend.workspace(apart);
  if (needed > (std::size_t{1} << 26) || needed_apart > (std::size_t{1} << 26)) { return; }

  std::vector<typename Backend::memory> own;
  std::vector<unsigned char*> places;
  for (const written_piece& piece : memory.written()) {
    const auto phase = reinterpret_cast<std::uintptr_t>(piece.at) % 64;
    own.emplace_back(phase + static_cast<std::size_t>(piece.bytes()));
    places.push_back(own.back().data() + phase);
    std::memcpy(places.back(), piece.at, static_cast<std::size_t>(piece.bytes()));
    *piece.pointer = places.back();
  }
  const mhar::status first = backend.run(apart, needed_apart);
  if (Backend::may_refuse(first)) {
    check_refusal(problem, first, backend, arena, before);
    return;
  }
  fuzz_require(first.ok(),
               std::string{"accepted, but not served: "} + first.argument + ": " + first.message);
  fuzz_require(std::memcmp(arena.data(), before.data(), before.size()) == 0,
               "an input was written");
  fuzz_require(backend.run(problem, needed).ok(), "served once only");

  std::vector<unsigned char> expected = before;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const written_piece& piece = memory.written()[i];
    const std::int64_t step = piece.count > 1 ? piece.stride * mhar::size_of(piece.type) : 0;
    const auto length = static_cast<std::size_t>(piece.width * mhar::size_of(piece.type));
    for (std::int64_t p = piece.first; p < piece.last; ++p) {
      std::memcpy(expected.data() + (piece.at - arena.data()) + p * step, places[i] + p * step,
                  length);
    }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (arena.data()[i] != expected[i]) {
      fuzz_failed("an accepted overlap changes a result, or something else was written, at byte " +
                  std::to_string(i));
    }
  }
}

//! Whether the problem's verb is given a workspace to use.
template <class Problem, class = void>
constexpr bool uses_workspace = false;
template <class Problem>
constexpr bool uses_workspace<Problem, std::void_t<decltype(validate(std::declval<const Problem&>(),
                                                                     mhar::workspace_view{}))>> =
    true;

//! A valid problem with its workspace among its arrays: refused as validation says, or it gives the same bits, and nothing but the
//! workspace is written besides.
template <class Problem, class Backend, class Arena>
void check_workspace(const Problem& problem, entropy& choices, Backend& backend, const Arena& arena,
                     const std::vector<std::int64_t>& starts,
                     const std::vector<unsigned char>& before)
{
  Problem copy = problem;
  const auto lists = own_lists(output_lists{}, copy);
  const std::size_t needed = std::max<std::size_t>(backend.workspace(problem), 1);
  if (starts.empty() || needed > std::size_t{1} << 17 || !problem_memory{copy}.inside(arena)) {
    return;
  }
  const auto which = choices.integer(0, static_cast<std::int64_t>(starts.size()) - 1);
  std::int64_t at = starts[static_cast<std::size_t>(which)] + 64 * choices.integer(-32, 32);
  if (choices.once_in(2)) { at -= static_cast<std::int64_t>(needed); }
  at = std::max<std::int64_t>(0, at / Backend::workspace_alignment * Backend::workspace_alignment);
  const auto first = static_cast<std::size_t>(at);
  if (first + needed > before.size()) { return; }

  const mhar::status valid = validate(problem, {arena.data() + at, needed});
  const mhar::status outcome = backend.run_in(problem, arena.data() + at, needed);
  const std::vector<unsigned char> after(arena.data(), arena.data() + before.size());
  std::memcpy(arena.data(), before.data(), before.size());
  if (Backend::may_refuse(outcome)) { return; }
  fuzz_require(outcome.code == valid.code && std::strcmp(outcome.argument, valid.argument) == 0,
               std::string{"with this workspace refused for "} + outcome.argument +
                   ", validation says " + valid.argument);
  if (!valid.ok()) {
    fuzz_require(after == before, std::string{"the workspace refused for "} + valid.argument +
                                      ", but something was written");
    return;
  }
  fuzz_require(backend.run(problem, needed).ok(), "served in one workspace only");
  const auto same = [&](std::size_t begin, std::size_t end) {
    return std::memcmp(arena.data() + begin, after.data() + begin, end - begin) == 0;
  };
  fuzz_require(same(0, first) && same(first + needed, before.size()),
               "a workspace among the arrays changes a result");
  std::memcpy(arena.data(), before.data(), before.size());
}

//! What a spoilt problem owes.
template <class T, class Problem, class Backend, class Arena>
void check_spoilt(Problem& problem, entropy& choices, Backend& backend, const Arena& arena,
                  const std::vector<std::int64_t>& starts)
{
  const std::vector<unsigned char> before(arena.data(), arena.data() + Arena::all_bytes);
  const mhar::status valid = validate(problem);
  if (!valid.ok()) {
    check_refusal(problem, valid, backend, arena, before);
    return;
  }
  check_service<T>(problem, backend, arena, before);
  std::memcpy(arena.data(), before.data(), before.size());
  if constexpr (uses_workspace<Problem>) {
    check_workspace(problem, choices, backend, arena, starts, before);
  }
}

//! A spoilt problem: `bind` binds it in an arena.
template <class T, class Problem, class Backend, class Bind>
void fuzz_spoilt_call(entropy& choices, Backend& backend, const Bind& bind)
{
  using arena_type = fuzz_arena<typename Backend::memory>;
  arena_type arena;
  bound<Problem, T> original = bind(arena);
  if (!arena.fits()) { return; }
  Problem& problem = original.problem;
  const int rows_of_case = count_rows(problem).count;
  spoiler<arena_type> spoil{choices, arena, arena.starts()};
  for (std::int64_t i = choices.integer(1, 3); i > 0; --i) { spoil(problem); }

  // A list is as long as the call had rows, and validating as many rows as an int can count takes long.
  const row_count rows = count_rows(problem);
  if (rows.count > (rows.listed ? rows_of_case : 2000)) { return; }

  check_spoilt<T>(problem, choices, backend, arena, arena.starts());
}

}  // namespace mhar_test
