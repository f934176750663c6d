// SPDX-License-Identifier: Apache-2.0
//! The memory that the verbs of a sweep have in common, as regions: folded sites, kept states, partial sums.
#pragma once

#include <mhar/types/detail/checker.hpp>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace detail {

// Named where two checks must agree on an address.
inline constexpr char states_name[] = "states";

//! What the folded sites are called: `sites` where a verb reads them, `folded` where fold writes them.
struct folded_names
{
  const char* query;
  const char* bias;
  const char* bias_stride;
  const char* null_source;
  const char* null_logit;
  const char* gate;
  const char* logit_gate;
  const char* packed;
  const char* rounding;
};
inline constexpr folded_names names_as_sites{
    "sites.query", "sites.bias",       "sites.bias_stride", "sites.null_source", "sites.null_logit",
    "sites.gate",  "sites.logit_gate", "sites.packed",      "sites.rounding"};
inline constexpr folded_names names_as_folded{
    "folded.query",       "folded.bias",       "folded.bias_stride",
    "folded.null_source", "folded.null_logit", "folded.gate",
    "folded.logit_gate",  "folded.packed",     "folded.rounding"};

//! The folded arrays of calls [0, num_calls). How long a packed form is only its backend knows: its first element stands for it.
template <class Accumulate, std::size_t Capacity>
void add_folded(checker& checks, const folded_sites<Accumulate>& sites, const shape& extent,
                std::int64_t num_calls, region_list<Capacity>& list,
                const folded_names& names = names_as_sites) noexcept
{
  const auto array_of = [&](const Accumulate* data, std::int64_t each, const char* name) {
    list.add(checks.values(data, num_calls, each, each, name));
  };
  array_of(sites.query, extent.width, names.query);
  array_of(sites.bias, sites.bias_stride, names.bias);
  array_of(sites.null_source, extent.width, names.null_source);
  array_of(sites.null_logit, extent.num_heads, names.null_logit);
  array_of(sites.gate, 1, names.gate);
  array_of(sites.logit_gate, 1, names.logit_gate);
  list.add(checks.values(static_cast<const Accumulate*>(sites.packed), 1, 0, 1, names.packed));
}

//! Members of a pass that have a slot: those that are kept, which it writes, and a finished first one, which it reads when kept.
template <std::size_t Inputs, std::size_t Outputs, class States, class Accumulate>
void add_states(checker& checks, const States& states, void* values, Accumulate* sums,
                std::int64_t sums_per_slot, const char* sums_name, int num_members,
                pass_start start, pass_end end, const shape& extent, region_list<Inputs>& inputs,
                region_list<Outputs>& outputs) noexcept
{
  const std::int64_t size = size_of(states.type);
  const std::int64_t elements = extent.num_positions * extent.width;
  const auto slot = [&](std::int64_t index) {
    return static_cast<char*>(values) + index * states.slot_stride * size;
  };
  const bool finishes = end == pass_end::finish_first;
  if (finishes && start == pass_start::kept) {
    inputs.add(checks.input(const_matrix{slot(states.first_slot), states.type, extent.width},
                            extent, states_name));
    inputs.add(
        checks.values(sums + states.first_slot * sums_per_slot, 1, 0, sums_per_slot, sums_name));
  }
  const std::int64_t first = std::int64_t{states.first_slot} + (finishes ? 1 : 0);
  const std::int64_t count = num_members - (finishes ? 1 : 0);
  if (count == 0) { return; }
  outputs.add(checks.pieces(slot(first), states.type, count, states.slot_stride, elements,
                            states_name, true));
  outputs.add(
      checks.values(sums + first * sums_per_slot, count, sums_per_slot, sums_per_slot, sums_name));
}

//! Every verb that is given partial sums adds to them.
template <class Accumulate, std::size_t Capacity>
void add_partials(checker& checks, const gradient_partials<Accumulate>& partials,
                  std::int64_t width, region_list<Capacity>& list) noexcept
{
  const std::int64_t sets = std::int64_t{partials.num_chunks} * partials.num_calls;
  const auto array_of = [&](const Accumulate* data, std::int64_t each, const char* name) {
    list.add(checks.values(data, sets, each, each, name));
  };
  array_of(partials.query, width, "partials.query");
  // Where there are none the stride may be anything.
  const bool has_bias = checks.ok() && partials.bias != nullptr;
  array_of(partials.bias, has_bias ? partials.bias_stride + 1 : 0, "partials.bias");
  array_of(partials.null_source, width, "partials.null_source");
  array_of(partials.gate, 1, "partials.gate");
  array_of(partials.output_norm, width, "partials.output_norm");
}

}  // namespace detail
MHAR_NAMESPACE_END
