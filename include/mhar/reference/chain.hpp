// SPDX-License-Identifier: Apache-2.0
//! A whole pass of a model over given rows, call by call: what every sweep must come to
//! (docs/operator.md).
#pragma once

#include <mhar/reference/route.hpp>

#include <utility>
#include <vector>

MHAR_NAMESPACE_BEGIN
namespace reference {

//! One call of a pass. It reads rows [0, num_rows) and then, when it has one, its private row.
template <class T>
struct chain_call
{
  int num_rows = 0;
  const_matrix private_row;  //!< [P, d] of element T, or absent
  site_parameters site;
  output_stage stage;
  const_matrix output_gradient;    //!< [P, d] dy; required by the backward
  const_matrix combined_gradient;  //!< [P, d] upstream on o, or absent
};

//! `queries_per_site` adjacent calls share everything but the query.
template <class T>
struct chain_problem
{
  shape extent;
  int num_rows = 0;
  const_rows<T> rows;  //!< [num_rows][P, d]
  int queries_per_site = 1;
  std::vector<chain_call<T>> calls;
};

//! What one call gives, [P, d] each; lse is [P, H].
struct chain_outputs
{
  table y;
  table combined;
  table mix;
  table lse;
};

//! Gradients of one site's parameters; empty where the site has no such parameter.
struct chain_site_gradients
{
  table query;  //!< [queries_per_site, d]
  vector norm_weight;
  vector bias;
  vector null_source;
  vector gate;
  vector output_norm_weight;
};

struct chain_gradients
{
  std::vector<table> rows;      //!< [num_rows] of [P, d]: the sum over the calls that read the row
  std::vector<table> privates;  //!< [calls] of [P, d]; empty for a call without a private row
  std::vector<table> partials;  //!< [calls] of [P, d]: do
  std::vector<chain_site_gradients> sites;
};

namespace detail {

//! What single calls cannot see.
template <class T>
void check_chain(const chain_problem<T>& chain)
{
  const auto require = [](bool condition, code failure, const char* argument, const char* message) {
    if (!condition) { check(status{failure, argument, message}); }
  };
  require(chain.queries_per_site >= 1 &&
              chain.calls.size() % static_cast<std::size_t>(chain.queries_per_site) == 0,
          code::bad_shape, "queries_per_site", "it must divide the number of calls");
  for (const chain_call<T>& call : chain.calls) {
    require(call.num_rows <= chain.num_rows, code::bad_shape, "calls.num_rows",
            "a call reads more rows than there are");
    require(!call.private_row || call.private_row.type == element_of<T>::value, code::bad_value,
            "calls.private_row", "a private row has the element type of the rows");
    require(!call.private_row || call.private_row.position_stride == chain.rows.position_stride,
            code::bad_stride, "calls.private_row",
            "a private row has the position stride of the rows");
  }
}

//! The rows of one call as a list, the private one last.
template <class T>
std::vector<const T*> rows_of(const chain_problem<T>& problem, const chain_call<T>& call)
{
  std::vector<const T*> list;
  for (int n = 0; n < call.num_rows; ++n) { list.push_back(problem.rows.row(n)); }
  if (call.private_row) { list.push_back(static_cast<const T*>(call.private_row.data)); }
  return list;
}

//! The part that forward and backward of a call share.
template <class Problem, class T>
Problem problem_of(const chain_problem<T>& chain, const chain_call<T>& call,
                   const std::vector<const T*>& rows)
{
  Problem problem;
  problem.extent = chain.extent;
  problem.num_rows = static_cast<int>(rows.size());
  problem.rows = row_list(rows.data(), chain.rows.position_stride);
  problem.site = call.site;
  problem.stage = call.stage;
  return problem;
}

inline matrix view(table& values, update mode = update::store)
{
  return {values.data(), element::float64, values.cols(), mode};
}
//! Adds to `values`, which are made when the parameter is there.
inline array sum_into(vector& values, const const_array& parameter, std::int64_t size)
{
  if (!parameter) { return {}; }
  if (values.size() == 0) { values = vector::Zero(size); }
  return {values.data(), element::float64, update::accumulate};
}

}  // namespace detail

//! Every call of the pass, each from its rows alone. Throws invalid_argument.
template <class T>
std::vector<chain_outputs> route_chain(const chain_problem<T>& chain)
{
  detail::check_chain(chain);
  const std::int64_t positions = chain.extent.num_positions;
  std::vector<chain_outputs> results;
  for (const chain_call<T>& call : chain.calls) {
    const std::vector<const T*> rows = detail::rows_of(chain, call);
    auto problem = detail::problem_of<route_problem<T>>(chain, call, rows);
    chain_outputs out;
    for (table* values : {&out.y, &out.combined, &out.mix}) {
      values->resize(positions, chain.extent.width);
    }
    std::vector<accumulate_t<T>> lse(static_cast<std::size_t>(positions * chain.extent.num_heads));
    problem.outputs.y = detail::view(out.y);
    problem.outputs.combined = detail::view(out.combined);
    problem.outputs.mix = detail::view(out.mix);
    problem.outputs.lse = lse.data();
    route(problem);

    out.lse.resize(positions, chain.extent.num_heads);
    for (std::size_t i = 0; i < lse.size(); ++i) {
      out.lse.data()[i] = static_cast<double>(lse[i]);
    }
    results.push_back(std::move(out));
  }
  return results;
}

//! The gradients of a pass whose rows are given: a row's is the sum over the calls that read it,
//! added up in double. Throws invalid_argument.
template <class T>
chain_gradients route_chain_gradient(const chain_problem<T>& chain)
{
  detail::check_chain(chain);
  const std::int64_t width = chain.extent.width;
  const table zeros = table::Zero(chain.extent.num_positions, width);
  chain_gradients sums;
  sums.rows.assign(static_cast<std::size_t>(chain.num_rows), zeros);
  sums.sites.resize(chain.calls.size() / static_cast<std::size_t>(chain.queries_per_site));

  for (std::size_t c = 0; c < chain.calls.size(); ++c) {
    const chain_call<T>& call = chain.calls[c];
    const std::vector<const T*> rows = detail::rows_of(chain, call);
    auto problem = detail::problem_of<route_gradient_problem<T>>(chain, call, rows);
    problem.output_gradient = call.output_gradient;
    problem.combined_gradient = call.combined_gradient;

    sums.privates.push_back(call.private_row ? zeros : table{});
    sums.partials.push_back(zeros);
    std::vector<void*> row_gradients;
    for (int n = 0; n < call.num_rows; ++n) {
      row_gradients.push_back(sums.rows[static_cast<std::size_t>(n)].data());
    }
    if (call.private_row) { row_gradients.push_back(sums.privates.back().data()); }
    problem.row_gradients = {nullptr, element::float64,     0,
                             width,   row_gradients.data(), update::accumulate};
    problem.partial_gradient = detail::view(sums.partials.back());

    const std::size_t queries = static_cast<std::size_t>(chain.queries_per_site);
    chain_site_gradients& site = sums.sites[c / queries];
    if (c % queries == 0) { site.query = table::Zero(chain.queries_per_site, width); }
    const std::int64_t num_sources = problem.num_rows + (call.site.null_source ? 1 : 0);
    const auto query_row = static_cast<Eigen::Index>(c % queries);
    problem.gradients.query = array{site.query.row(query_row).data(), element::float64};
    problem.gradients.norm_weight =
        detail::sum_into(site.norm_weight, call.site.norm_weight, width);
    problem.gradients.bias = detail::sum_into(site.bias, call.site.bias, num_sources);
    problem.gradients.null_source =
        detail::sum_into(site.null_source, call.site.null_source, width);
    problem.gradients.gate = detail::sum_into(site.gate, call.stage.gate, 1);
    problem.gradients.output_norm_weight =
        detail::sum_into(site.output_norm_weight, call.stage.norm_weight, width);
    route_gradient(problem);
  }
  return sums;
}

}  // namespace reference
MHAR_NAMESPACE_END
