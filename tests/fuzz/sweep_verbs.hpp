// SPDX-License-Identifier: Apache-2.0
//! The verb of each problem of a sweep, and the workspace that it needs.
#pragma once

#include <mhar/status.hpp>
#include <mhar/types/sweep.hpp>

#include <cstring>

namespace mhar_test {

//! How many chunks partial sums have only a backend knows; other than that what validation accepts is served.
inline bool refuses_chunks(const mhar::status& outcome)
{
  return outcome.code == mhar::code::bad_shape &&
         std::strcmp(outcome.argument, "partials.num_chunks") == 0;
}

template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::advance_problem<T>& problem, const Context& context)
{
  return Verbs::advance(problem, context);
}
template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::output_gradient_problem<T>& problem, const Context& context)
{
  return Verbs::output_gradient(problem, context);
}
template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::gather_problem<T>& problem, const Context& context)
{
  return Verbs::gather(problem, context);
}
template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::fold_problem<T>& problem, const Context& context)
{
  return Verbs::fold(problem, context);
}
template <class Verbs, class T, class Context>
mhar::status sweep_verb(const mhar::reduce_problem<T>& problem, const Context& context)
{
  return Verbs::reduce(problem, context);
}

template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::advance_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, problem.num_calls, problem.num_rows});
}
template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::output_gradient_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, 1, 1});
}
template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::gather_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, problem.num_rows, problem.num_calls});
}
template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::fold_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, 1, 1});
}
template <class Verbs, class T>
std::size_t sweep_workspace(const mhar::reduce_problem<T>& problem)
{
  return Verbs::template workspace_bytes<T>({problem.extent, 1, 1});
}

}  // namespace mhar_test
