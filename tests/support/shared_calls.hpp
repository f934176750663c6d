// SPDX-License-Identifier: Apache-2.0
//! Calls of several shapes whose inputs several host threads share, and room for one thread's outputs. `Buffer<T>` holds a vector's
//! elements where a backend works: data() and download().
#pragma once

#include "support/random.hpp"

#include <mhar/types/call.hpp>

#include <thread>
#include <vector>

namespace mhar_test {

//! One call, forward and backward, over rows of T. Its problems have no outputs: those are a thread's own.
template <class T, template <class> class Buffer>
struct shared_call
{
  shared_call(const mhar::shape& shape, int rows_of_call, random_inputs& random)
      : extent{shape},
        num_rows{rows_of_call},
        rows{random.vector<T>(rows_of_call * shape.num_positions * shape.width)},
        upstream{random.vector<T>(shape.num_positions * shape.width)},
        query{random.vector<float>(shape.width)},
        null_source{random.vector<float>(shape.width)}
  {
    fill(forward);
    fill(backward);
    backward.output_gradient = {upstream.data(), extent.width};
  }

  mhar::shape extent;
  int num_rows;
  Buffer<T> rows;
  Buffer<T> upstream;
  Buffer<float> query;
  Buffer<float> null_source;
  mhar::route_problem<T> forward;
  mhar::route_gradient_problem<T> backward;

private:
  template <class Problem>
  void fill(Problem& problem)
  {
    problem.extent = extent;
    problem.num_rows = num_rows;
    problem.rows = mhar::source_major<T>(rows.data(), extent.num_positions, extent.width);
    problem.site.query = query.data();
    problem.site.null_source = null_source.data();
    problem.stage.norm = mhar::output_norm::rms;
  }
};

//! What one thread makes of a shared call.
template <class T, template <class> class Buffer>
class outputs_of_call
{
public:
  explicit outputs_of_call(const shared_call<T, Buffer>& call)
      : forward_{call.forward},
        backward_{call.backward},
        y_{std::vector<T>(elements(call))},
        lse_{std::vector<float>(elements(call))},
        row_gradients_{std::vector<T>(elements(call) * static_cast<std::size_t>(call.num_rows))},
        query_{std::vector<float>(static_cast<std::size_t>(call.extent.width))}
  {
    const std::int64_t width = call.extent.width;
    forward_.outputs.y = {y_.data(), width};
    forward_.outputs.lse = lse_.data();
    backward_.row_gradients.base = row_gradients_.data();
    backward_.row_gradients.type = mhar::element_of<T>::value;
    backward_.row_gradients.row_stride = call.extent.num_positions * width;
    backward_.row_gradients.position_stride = width;
    backward_.gradients.query = query_.data();
  }

  //! route(problem) and route_gradient(problem), and then every byte that they wrote.
  template <class Route, class RouteGradient>
  [[nodiscard]] std::vector<unsigned char> run(const Route& route,
                                               const RouteGradient& route_gradient)
  {
    route(forward_);
    route_gradient(backward_);
    std::vector<unsigned char> all;
    const auto append = [&](const auto& values) {
      const auto* const first = reinterpret_cast<const unsigned char*>(values.data());
      all.insert(all.end(), first, first + values.size() * sizeof(*values.data()));
    };
    append(y_.download());
    append(lse_.download());
    append(row_gradients_.download());
    append(query_.download());
    return all;
  }

private:
  static std::size_t elements(const shared_call<T, Buffer>& call)
  {
    return static_cast<std::size_t>(call.extent.num_positions * call.extent.width);
  }

  mhar::route_problem<T> forward_;
  mhar::route_gradient_problem<T> backward_;
  Buffer<T> y_;
  Buffer<float> lse_;
  Buffer<T> row_gradients_;
  Buffer<float> query_;
};

//! Two threads run the same calls in opposite orders, `rounds` times each; how often one of them got other bytes than a thread
//! alone.
//! `prepare()` gives a thread what runs its calls: an object with route(problem) and route_gradient(problem).
template <class T, template <class> class Buffer, class Prepare>
int different_results(const std::vector<mhar::shape>& shapes, int rounds, random_inputs& random,
                      const Prepare& prepare)
{
  std::vector<shared_call<T, Buffer>> calls;
  calls.reserve(shapes.size());
  for (const mhar::shape& shape : shapes) { calls.emplace_back(shape, 5, random); }
  const auto run = [](auto& runner, outputs_of_call<T, Buffer>& outputs) {
    return outputs.run([&](const auto& problem) { runner.route(problem); },
                       [&](const auto& problem) { runner.route_gradient(problem); });
  };
  std::vector<std::vector<unsigned char>> expected;
  {
    auto alone = prepare();
    for (const auto& call : calls) {
      outputs_of_call<T, Buffer> outputs{call};
      expected.push_back(run(alone, outputs));
    }
  }
  int different[2] = {0, 0};
  const auto loop = [&](int which) {
    auto runner = prepare();
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const std::size_t next = which == 0 ? i : calls.size() - 1 - i;
        outputs_of_call<T, Buffer> outputs{calls[next]};
        if (run(runner, outputs) != expected[next]) { ++different[which]; }
      }
    }
  };
  std::thread other{loop, 1};
  loop(0);
  other.join();
  return different[0] + different[1];
}

}  // namespace mhar_test
