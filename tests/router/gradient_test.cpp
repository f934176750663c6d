// SPDX-License-Identifier: Apache-2.0
//! Store and accumulate, micro-batches, a second backward, gaps between positions, and heads
//! sharded over ranks.
#include "cpu_access.hpp"
#include "sweep_bodies.hpp"

#include <algorithm>

using namespace mhar_test;

namespace {

template <class T>
using naive = sweep_on<naive_backend, T>;
template <class T>
using cpu = sweep_on<mhar::cpu::backend, T>;

sweep_options options_of_everything(std::int64_t positions)
{
  sweep_options options;
  options.extent = {positions, 24, 3};
  options.queries_per_site = 2;
  options.schedule = mhar::repeated(mhar::block_schedule(5, 2), 2);
  options.bias = options.null_source = options.gate = options.partial = options.output_norm = true;
  options.combined_gradient = true;
  return options;
}

const char* const parameter_names[] = {"query",       "norm_weight", "bias",
                                       "null_source", "gate",        "output_weight"};

}  // namespace

TEST_CASE_TEMPLATE("router: a second backward gives the same bits", On, naive<double>, cpu<float>)
{
  using T = typename On::element;
  random_inputs random{400};
  const sweep_case<T> data{options_of_everything(3), 401};
  run_choices choices = random_choices<T>(data.options.schedule, random);
  choices.gradients = mhar::gradient_home::block;
  sweep_run<typename On::backend, T> run{data, choices};
  run.forward();
  const sweep_results first = run.backward();
  CHECK(first == run.backward());
}

TEST_CASE_TEMPLATE("router: parameter gradients are stored or added", On, naive<double>, cpu<float>)
{
  using T = typename On::element;
  using real = mhar::accumulate_t<T>;
  using run_type = sweep_run<typename On::backend, T>;
  random_inputs random{410};
  const sweep_case<T> data{options_of_everything(3), 411};
  run_choices choices = random_choices<T>(data.options.schedule, random);
  choices.gradients = mhar::gradient_home::block;
  run_type run{data, choices};
  run.forward();
  typename run_type::gradient_arrays arrays;
  const sweep_results stored = run.backward_into(arrays, mhar::update::store);

  for (auto& array : arrays) {
    array = std::make_unique<backend_array<typename On::backend, real>>(
        std::vector<real>(array->size(), 0));
  }
  const sweep_results added_to_zero = run.backward_into(arrays, mhar::update::accumulate);
  CHECK(added_to_zero == stored);
  const sweep_results added = run.backward_into(arrays, mhar::update::accumulate);
  for (const char* const name : parameter_names) {
    for (std::size_t i = 0; i < stored.at(name).size(); ++i) {
      for (std::size_t j = 0; j < stored.at(name)[i].size(); ++j) {
        CHECK(added.at(name)[i][j] == 2 * stored.at(name)[i][j]);
      }
    }
  }
}

TEST_CASE_TEMPLATE("router: micro-batches add up to the batch", On, naive<double>, cpu<float>)
{
  using T = typename On::element;
  using run_type = sweep_run<typename On::backend, T>;
  random_inputs random{420};
  const sweep_case<T> batch{options_of_everything(32), 421};
  const run_choices choices = random_choices<T>(batch.options.schedule, random);
  typename run_type::gradient_arrays arrays;
  sweep_results results;
  for (int part = 0; part < 4; ++part) {
    const sweep_case<T> data = batch.positions(8 * part, 8);
    run_type run{data, choices};
    run.forward();
    results = run.backward_into(arrays, part == 0 ? mhar::update::store : mhar::update::accumulate);
  }
  sweep_results expected = batch.expected();
  for (auto name = expected.begin(); name != expected.end();) {
    const bool is_parameter = std::find(std::begin(parameter_names), std::end(parameter_names),
                                        name->first) != std::end(parameter_names);
    name = is_parameter ? std::next(name) : expected.erase(name);
  }
  check_close<T>(results, expected);
}

TEST_CASE_TEMPLATE("router: a row's gradient is stored or added, and nothing beside it", On,
                   naive<double>, cpu<float>)
{
  using T = typename On::element;
  using backend = typename On::backend;
  using real = mhar::accumulate_t<T>;
  sweep_options options;
  options.extent = {4, 6, 2};
  options.schedule = mhar::full_schedule(3);
  const sweep_case<T> data{options, 431};
  const sweep_results expected = data.expected();
  run_choices choices;
  choices.plan = mhar::custom_plan(options.schedule, {1, 2, 1}, {3, 1, 1});
  choices.call_state = choices.row_state = mhar::element_of<real>::value;
  sweep_run<backend, T> run{data, choices};
  constexpr std::int64_t stride = 9;
  for (const mhar::update mode : {mhar::update::store, mhar::update::accumulate}) {
    run.forward();
    run.begin_backward();
    for (int n = 2; n >= 0; --n) {
      run.backward_call(n);
      std::vector<real> before(4 * stride, mode == mhar::update::store ? real(NAN) : real(5));
      for (std::int64_t p = 0; p < 4; ++p) {
        for (std::int64_t i = 6; i < stride; ++i) {
          before[static_cast<std::size_t>(p * stride + i)] = -777;
        }
      }
      const backend_array<backend, real> gradient{before};
      mhar::check(run.router().row_gradient(run.context(), n, {gradient.data(), stride, mode}));
      const std::vector<real> after = gradient.host();
      for (std::int64_t p = 0; p < 4; ++p) {
        for (std::int64_t i = 0; i < stride; ++i) {
          const double got = static_cast<double>(after[static_cast<std::size_t>(p * stride + i)]);
          if (i >= 6) {
            CHECK(got == -777);
            continue;
          }
          const double wanted = expected.at(
              "row_gradient")[static_cast<std::size_t>(n)][static_cast<std::size_t>(p * 6 + i)];
          CHECK(got ==
                doctest::Approx(wanted + (mode == mhar::update::store ? 0 : 5)).epsilon(1e-4));
        }
      }
    }
    run.finish_backward();
  }
}

TEST_CASE_TEMPLATE("router: unwanted row gradients leave the others as they are", On, naive<double>,
                   cpu<float>)
{
  using T = typename On::element;
  random_inputs random{440};
  sweep_options options;
  options.extent = {3, 12, 3};
  options.schedule = mhar::full_schedule(6);
  const sweep_case<T> data{options, 441};
  run_choices choices = random_choices<T>(options.schedule, random);
  sweep_run<typename On::backend, T> run{data, choices};
  run.forward();
  run.begin_backward();
  for (int n = 5; n >= 0; --n) {
    run.backward_call(n);
    if (n % 2 == 1) { run.row_gradient(n); }
    else {
      mhar::check(run.router().row_gradient(run.context(), n, {}));
    }
  }
  run.finish_backward();
  sweep_results expected = data.expected();
  for (std::size_t n = 0; n < 6; n += 2) { expected["row_gradient"][n].clear(); }
  check_close<T>(run.results(), expected);
}

TEST_CASE_TEMPLATE("router: heads sharded over two ranks equal the whole", On, naive<double>,
                   cpu<float>, cpu<double>)
{
  using T = typename On::element;
  using backend = typename On::backend;
  using real = mhar::accumulate_t<T>;
  random_inputs random{450};
  for (int round = 0; round < 6; ++round) {
    sweep_options options;
    options.extent = {3, 20, 4};
    options.schedule =
        round % 2 == 0 ? mhar::full_schedule(7) : mhar::repeated(mhar::full_schedule(3), 2);
    options.queries_per_site = 1 + round % 2;
    options.bias = options.gate = options.partial = true;
    const sweep_case<T> whole{options, 451};
    const sweep_case<T> parts[] = {whole.heads(0, 2), whole.heads(2, 2)};
    run_choices choices = random_choices<T>(options.schedule, random);
    choices.call_state = choices.row_state = mhar::element_of<real>::value;
    std::vector<std::unique_ptr<sweep_run<backend, T>>> ranks;
    for (const auto& part : parts) {
      ranks.push_back(std::make_unique<sweep_run<backend, T>>(part, choices));
      ranks.back()->begin_forward();
    }
    const auto share = [&](auto place, const std::vector<real>& values) {
      for (auto& rank : ranks) {
        backend_access<backend>::upload(place(*rank), values.data(), values.size() * sizeof(real));
      }
    };
    for (int c = 0; c < whole.num_calls(); ++c) {
      for (int n = ranks[0]->router().num_rows(); n < whole.rows_of(c); ++n) {
        for (auto& rank : ranks) { rank->append_row(); }
        std::vector<real> r;
        for (int p = 0; p < 3; ++p) {
          r.push_back(inverse_rms(whole.rows[static_cast<std::size_t>(n)].data() + p * 20, 20, 20,
                                  real(1e-5)));
        }
        share([n](auto& rank) { return rank.router().inverse_rms(n); }, r);
      }
      for (auto& rank : ranks) { rank->route(c); }
    }
    for (auto& rank : ranks) { rank->begin_backward(); }
    int row = whole.num_rows() - 1;
    for (int c = whole.num_calls() - 1; c >= -1; --c) {
      for (; row >= (c < 0 ? 0 : whole.rows_of(c)); --row) {
        std::vector<real> total(3);
        for (auto& rank : ranks) {
          CHECK(rank->router().row_gradient(rank->context(), row, {}).code ==
                mhar::code::wrong_order);
          CHECK(rank->router().head_sum(row) == nullptr);
          mhar::check(rank->router().gather_row(rank->context(), row));
          const auto sum = backend_array<backend, real>::download(rank->router().head_sum(row), 3);
          for (std::size_t p = 0; p < 3; ++p) { total[p] += sum[p]; }
        }
        share([row](auto& rank) { return rank.router().head_sum(row); }, total);
        for (auto& rank : ranks) { rank->row_gradient(row); }
      }
      for (auto& rank : ranks) {
        if (c >= 0) { rank->backward_call(c); }
      }
    }
    for (auto& rank : ranks) { rank->finish_backward(); }

    // Columns side by side; what every rank has a share of is added.
    sweep_results joined;
    for (auto& [name, lists] : ranks[0]->results()) {
      const auto& others = ranks[1]->results().at(name);
      for (std::size_t i = 0; i < lists.size(); ++i) {
        const bool is_shared = name == "bias" || name == "gate";
        const std::size_t piece = name == "lse" ? 2 : 10;
        std::vector<double> list;
        for (std::size_t j = 0; j < lists[i].size(); ++j) {
          if (is_shared) { list.push_back(lists[i][j] + others[i][j]); }
          else {
            list.push_back(lists[i][j]);
          }
          if (!is_shared && (j + 1) % piece == 0) {
            const auto from = others[i].begin() + static_cast<std::int64_t>(j + 1 - piece);
            list.insert(list.end(), from, from + static_cast<std::int64_t>(piece));
          }
        }
        joined[name].push_back(list);
      }
    }
    check_close<T>(joined, whole.expected());
  }
}
