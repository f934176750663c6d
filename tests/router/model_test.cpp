// SPDX-License-Identifier: Apache-2.0
//! A model trained through a router, as frameworks do it: a shared buffer of rows, checkpointed
//! layers, a pipeline of two stages.
#include "cpu_access.hpp"
#include "random_plan.hpp"
#include "sweep_bodies.hpp"
#include "toy_model.hpp"

#include <string>

using namespace mhar_test;

namespace {

template <class T>
using naive = sweep_on<naive_backend, T>;
template <class T>
using cpu = sweep_on<mhar::cpu::backend, T>;

constexpr int num_calls = 13;  // six layers of two sublayers, and the output
const mhar::shape extent{18, 32, 4};

template <class T>
struct outcome
{
  T loss = 0;
  toy_gradients<T> gradients;
};

template <class Backend, class T>
outcome<T> run_model(const toy_values<T>& values, const mhar::depth_plan& plan,
                     mhar::gradient_home home, toy_activations activations)
{
  toy_stage<Backend, T> stage{values, 0, num_calls, plan, home, activations};
  std::vector<std::vector<T>> rows{values.embedding};
  outcome<T> result{0, toy_gradients<T>{values}};
  result.loss = stage.forward(rows);
  stage.backward(rows, result.gradients);
  CHECK(stage.router().num_rows() == num_calls);
  if (home == mhar::gradient_home::block) {
    for (int n = 0; n < num_calls; ++n) {  // nobody wrote the buffer after its producers
      CHECK(std::equal(rows[static_cast<std::size_t>(n)].begin(),
                       rows[static_cast<std::size_t>(n)].end(), stage.router().row(n)));
    }
  }
  return result;
}

//! The same model with a plain list of rows and the reference's calls.
template <class T>
outcome<double> run_reference(const toy_values<T>& given)
{
  toy_values<double> values{extent, num_calls, 0};
  const auto widen = [](const std::vector<T>& from) {
    return std::vector<double>(from.begin(), from.end());
  };
  for (std::size_t c = 0; c < num_calls; ++c) {
    values.queries[c] = widen(given.queries[c]);
    values.norm_weights[c] = widen(given.norm_weights[c]);
    values.weights[c] = widen(given.weights[c]);
  }
  values.embedding = widen(given.embedding);
  values.upstream = widen(given.upstream);

  outcome<double> result{0, toy_gradients<double>{values}};
  std::vector<std::vector<double>> rows{values.embedding};
  std::vector<std::vector<double>> y;
  std::vector<const double*> list;
  const auto problem_of = [&](auto& problem, std::size_t c) {
    problem.extent = extent;
    problem.num_rows = static_cast<int>(c) + 1;
    problem.rows = mhar::row_list(list.data(), extent.width);
    problem.site.query = values.queries[c].data();
    problem.site.norm_weight = values.norm_weights[c].data();
  };
  for (std::size_t c = 0; c < num_calls; ++c) {
    list.clear();
    for (const auto& row : rows) { list.push_back(row.data()); }
    mhar::route_problem<double> problem;
    problem_of(problem, c);
    y.emplace_back(values.embedding.size());
    problem.outputs.y = {y.back().data(), extent.width};
    mhar::reference::route(problem);
    if (c + 1 == num_calls) { break; }
    rows.emplace_back(values.embedding.size());
    toy_sublayer(values, static_cast<int>(c), y[c].data(), rows.back().data());
  }
  for (std::size_t i = 0; i < values.upstream.size(); ++i) {
    result.loss += y.back()[i] * values.upstream[i];
  }
  std::vector<void*> gradient_list;
  for (auto& row : result.gradients.rows) { gradient_list.push_back(row.data()); }
  for (std::size_t c = num_calls; c-- > 0;) {
    const std::vector<double> dy =
        c + 1 == num_calls
            ? values.upstream
            : toy_sublayer_gradient(values, static_cast<int>(c), y[c].data(), rows[c + 1].data(),
                                    result.gradients.rows[c + 1], result.gradients.weights[c]);
    mhar::route_gradient_problem<double> problem;
    problem_of(problem, c);
    problem.output_gradient = {dy.data(), extent.width};
    problem.row_gradients.list = gradient_list.data();
    problem.row_gradients.type = mhar::element::float64;
    problem.row_gradients.position_stride = extent.width;
    problem.row_gradients.mode = mhar::update::accumulate;
    problem.gradients.query = result.gradients.queries[c].data();
    problem.gradients.norm_weight = result.gradients.norm_weights[c].data();
    mhar::reference::route_gradient(problem);
  }
  return result;
}

template <class T, class Other>
void check_outcome(const outcome<T>& actual, const outcome<Other>& expected, double tolerance)
{
  CHECK(static_cast<double>(actual.loss) ==
        doctest::Approx(static_cast<double>(expected.loss)).epsilon(100 * tolerance));
  const auto compare = [tolerance](const auto& got, const auto& wanted, const std::string& name) {
    double scale = 0;
    double difference = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      for (std::size_t j = 0; j < wanted[i].size(); ++j) {
        scale = std::max(scale, std::abs(static_cast<double>(wanted[i][j])));
        difference = std::max(difference, std::abs(static_cast<double>(got[i][j]) -
                                                   static_cast<double>(wanted[i][j])));
      }
    }
    CHECK_MESSAGE(difference <= tolerance * scale, name << " is off by " << difference / scale);
  };
  compare(actual.gradients.rows, expected.gradients.rows, "rows");
  compare(actual.gradients.queries, expected.gradients.queries, "queries");
  compare(actual.gradients.norm_weights, expected.gradients.norm_weights, "norm_weights");
  compare(actual.gradients.weights, expected.gradients.weights, "weights");
}

template <class T>
constexpr double model_tolerance = sizeof(T) == 8 ? 1e-12 : 1e-5;

mhar::depth_plan plan_for(const mhar::depth_schedule& schedule)
{
  return mhar::cheapest_plan(
      schedule, mhar::costs_of(extent, mhar::element::bfloat16, mhar::element::bfloat16,
                               mhar::element::bfloat16));
}

}  // namespace

TEST_CASE_TEMPLATE("router: a model's loss and gradients, rows in a shared buffer", On,
                   naive<double>, cpu<float>, cpu<double>)
{
  using T = typename On::element;
  const toy_values<T> values{extent, num_calls, 700};
  const auto expected = run_reference(values);
  const auto schedule = mhar::full_schedule(num_calls);
  random_inputs random{701};
  for (const auto& plan :
       {plan_for(schedule), mhar::streaming_plan(schedule), random_plan(schedule, random)}) {
    const auto kept = run_model<typename On::backend>(values, plan, mhar::gradient_home::block,
                                                      toy_activations::kept);
    check_outcome(kept, expected, model_tolerance<T>);
    const auto in_place = run_model<typename On::backend>(
        values, plan, mhar::gradient_home::dead_rows, toy_activations::kept);
    CHECK(in_place.gradients == kept.gradients);
  }
}

TEST_CASE_TEMPLATE("router: checkpointed layers give the same bits", On, naive<double>, cpu<float>)
{
  using T = typename On::element;
  const toy_values<T> values{extent, num_calls, 710};
  const auto schedule = mhar::full_schedule(num_calls);
  random_inputs random{711};
  for (const auto& plan : {plan_for(schedule), random_plan(schedule, random)}) {
    const auto kept = run_model<typename On::backend>(values, plan, mhar::gradient_home::block,
                                                      toy_activations::kept);
    for (const auto home : {mhar::gradient_home::block, mhar::gradient_home::dead_rows}) {
      const auto recomputed =
          run_model<typename On::backend>(values, plan, home, toy_activations::recomputed);
      CHECK(recomputed.loss == kept.loss);
      CHECK(recomputed.gradients == kept.gradients);
    }
  }
}

TEST_CASE_TEMPLATE("router: two pipeline stages give the gradients of one", On, naive<double>,
                   cpu<float>, cpu<double>)
{
  using T = typename On::element;
  using stage_type = toy_stage<typename On::backend, T>;
  const toy_values<T> values{extent, num_calls, 720};
  const auto expected = run_reference(values);
  for (const int split : {1, 6, 12}) {
    mhar::depth_schedule later;
    for (int c = split; c < num_calls; ++c) { later.num_rows.push_back(c + 1); }
    stage_type first{values,
                     0,
                     split,
                     plan_for(mhar::full_schedule(split)),
                     mhar::gradient_home::block,
                     toy_activations::kept};
    stage_type second{values,
                      split,
                      num_calls,
                      plan_for(later),
                      mhar::gradient_home::dead_rows,
                      toy_activations::recomputed};
    std::vector<std::vector<T>> rows{values.embedding};
    outcome<T> result{0, toy_gradients<T>{values}};
    first.forward(rows);
    result.loss = second.forward(rows);
    second.backward(rows, result.gradients);
    first.backward(rows, result.gradients);
    check_outcome(result, expected, model_tolerance<T>);
  }
}
