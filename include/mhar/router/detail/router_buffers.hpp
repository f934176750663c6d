// SPDX-License-Identifier: Apache-2.0
//! How a router divides its block: one function that both counts the bytes and places the buffers,
//! so that they cannot disagree.
#pragma once

#include <mhar/router/router_config.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

MHAR_NAMESPACE_BEGIN

namespace detail {

//! Hands out aligned pieces of a block; without a block it only counts.
class block_arena
{
public:
  static constexpr std::size_t alignment = 256;

  explicit block_arena(void* block) noexcept : base_{static_cast<char*>(block)} {}

  [[nodiscard]] void* take(std::size_t bytes) noexcept
  {
    void* const piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + alignment - 1) / alignment * alignment;
    return piece;
  }
  template <class T>
  [[nodiscard]] T* take(std::int64_t count) noexcept
  {
    return static_cast<T*>(take(static_cast<std::size_t>(count) * sizeof(T)));
  }
  [[nodiscard]] void* take(element type, std::int64_t count) noexcept
  {
    return take(static_cast<std::size_t>(count * size_of(type)));
  }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  //! Goes back to (or forward to) an earlier amount: what is taken next may share memory with what
  //! was taken since.
  void set_used(std::size_t bytes) noexcept { used_ = bytes; }

private:
  char* base_;
  std::size_t used_ = 0;
};

//! The buffers of a router; shapes at the fields. N rows, S calls, P positions, H heads, d width.
template <class T>
struct router_buffers
{
  using accumulate = accumulate_t<T>;

  T* rows = nullptr;  //!< [N + extra, P, d] with row_home::block, else [extra, P, d]
  folded_sites<accumulate> folded;
  accumulate* inverse_rms = nullptr;          //!< [N, P]
  accumulate* private_inverse_rms = nullptr;  //!< [S, P] in training, [P] in inference
  accumulate* lse = nullptr;                  //!< [S, P, H], training
  void* call_mix = nullptr;                   //!< [slots, P, d] of call_state
  accumulate* call_lse = nullptr;             //!< [slots, P, H]
  void* scratch_mix = nullptr;                //!< [recompute_calls, P, d]
  accumulate* scratch_lse = nullptr;          //!< [recompute_calls, P, H]
  T* gradients = nullptr;                     //!< [S, P, d] with gradient_home::block
  accumulate* dot = nullptr;                  //!< [S, P, H]
  void* row_gradient = nullptr;               //!< [slots, P, d] of row_state
  accumulate* head_sum = nullptr;             //!< [slots, P]
  gradient_partials<accumulate> partials;
  void* partials_start = nullptr;
  std::size_t partials_bytes = 0;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

//! Where each call's gradient goes with gradient_home::dead_rows: the newest row that neither this
//! call nor an earlier one reads and that has no tenant yet; N + i means extra row i.
template <class Visit>
void each_tenant(const depth_schedule& schedule, Visit visit)
{
  const int num_rows = schedule.total_rows();
  int next_dead = num_rows - 1;
  int next_extra = num_rows;
  for (int call = schedule.num_calls() - 1; call >= 0; --call) {
    const auto index = static_cast<std::size_t>(call);
    visit(index, next_dead >= schedule.num_rows[index] ? next_dead-- : next_extra++);
  }
}

[[nodiscard]] inline std::vector<int> gradient_tenants(const depth_schedule& schedule)
{
  std::vector<int> places(schedule.num_rows.size());
  each_tenant(schedule, [&places](std::size_t call, int place) { places[call] = place; });
  return places;
}

[[nodiscard]] inline int num_extra_rows(const router_config& config)
{
  int extra = 0;
  if (config.gradients != gradient_home::dead_rows) { return extra; }
  each_tenant(config.plan.schedule,
              [&](std::size_t, int place) { extra += place >= config.plan.num_rows() ? 1 : 0; });
  return extra;
}

template <class T, class Has>
[[nodiscard]] bool any_site(const router_config& config, Has has)
{
  return std::any_of(config.sites.begin(), config.sites.end(), has);
}

//! Entries of a call's bias without the null source's, at most.
[[nodiscard]] inline int bias_entries(const router_config& config)
{
  int most = 0;
  for (int call = 0; call < config.plan.num_calls(); ++call) {
    most = (std::max)(most, num_sources(config, call) - (has_null_source(config) ? 1 : 0));
  }
  return most;
}

template <class Backend, class T>
void place_folded(const router_config& config, block_arena& arena, router_buffers<T>& buffers)
{
  using accumulate = accumulate_t<T>;
  const std::int64_t calls = config.plan.num_calls();
  folded_sites<accumulate>& folded = buffers.folded;
  folded.rounding = config.sites.front().parameters.rounding;
  folded.query = arena.take<accumulate>(calls * config.extent.width);
  folded.gate = arena.take<accumulate>(calls);
  folded.logit_gate = arena.take<accumulate>(calls);
  if (any_site<T>(config, [](const router_site& s) { return bool{s.parameters.bias}; })) {
    folded.bias_stride = bias_entries(config);
    folded.bias = arena.take<accumulate>(calls * folded.bias_stride);
  }
  if (has_null_source(config)) {
    folded.null_source = arena.take<accumulate>(calls * config.extent.width);
    folded.null_logit = arena.take<accumulate>(calls * config.extent.num_heads);
  }
  const std::size_t packed =
      Backend::template packed_bytes<T>(config.extent, config.plan.num_calls());
  if (packed != 0) { folded.packed = arena.take(packed); }
}

//! The partial sums lie together, so that one zero reaches all of them.
template <class Backend, class T>
void place_partials(const router_config& config, block_arena& arena, router_buffers<T>& buffers)
{
  using accumulate = accumulate_t<T>;
  const wanted_gradients& wanted = config.wanted;
  const auto is_wanted = [](parameter_gradient kind) { return kind == parameter_gradient::wanted; };
  const bool with_bias = is_wanted(wanted.bias) && any_site<T>(config, [](const router_site& s) {
                           return bool{s.parameters.bias};
                         });
  const bool with_gate = is_wanted(wanted.gate) && any_site<T>(config, [](const router_site& s) {
                           return bool{s.stage.gate};
                         });
  const bool with_norm =
      is_wanted(wanted.output_norm_weight) &&
      any_site<T>(config, [](const router_site& s) { return bool{s.stage.norm_weight}; });

  gradient_partials<accumulate>& partials = buffers.partials;
  partials.num_calls = config.plan.num_calls();
  partials.num_chunks = Backend::num_chunks(config.extent);
  const std::int64_t sets = std::int64_t{partials.num_chunks} * partials.num_calls;
  const std::size_t before = arena.used();
  if (is_wanted(wanted.query)) {
    partials.query = arena.take<accumulate>(sets * config.extent.width);
  }
  if (with_bias) {
    partials.bias_stride = bias_entries(config);
    partials.bias = arena.take<accumulate>(sets * (partials.bias_stride + 1));
  }
  if (is_wanted(wanted.null_source) && has_null_source(config)) {
    partials.null_source = arena.take<accumulate>(sets * config.extent.width);
  }
  if (with_gate) { partials.gate = arena.take<accumulate>(sets); }
  if (with_norm) { partials.output_norm = arena.take<accumulate>(sets * config.extent.width); }
  buffers.partials_bytes = arena.used() - before;
}

template <class T>
void place_call_states(const router_config& config, block_arena& arena, router_buffers<T>& buffers)
{
  const std::int64_t slots = config.mixes == mix_keeper::router ? config.plan.num_calls()
                                                                : config.plan.forward.num_slots();
  const std::int64_t positions = config.extent.num_positions;
  buffers.call_mix = arena.take(config.call_state, slots * positions * config.extent.width);
  buffers.call_lse = arena.take<accumulate_t<T>>(slots * positions * config.extent.num_heads);
}

template <class Backend, class T>
void place_backward(const router_config& config, block_arena& arena, router_buffers<T>& buffers)
{
  using accumulate = accumulate_t<T>;
  const std::int64_t positions = config.extent.num_positions;
  const std::int64_t elements = positions * config.extent.width;
  const std::int64_t calls = config.plan.num_calls();
  // A row of sharded heads is kept until the ranks have added its head sum: its pass's first member
  // needs a slot, too.
  const std::int64_t slots = config.plan.backward.num_slots() + (is_sharded(config) ? 1 : 0);
  if (config.gradients == gradient_home::block) {
    buffers.gradients = arena.take<T>(calls * elements);
  }
  buffers.dot = arena.take<accumulate>(calls * positions * config.extent.num_heads);
  buffers.row_gradient = arena.take(config.row_state, slots * elements);
  buffers.head_sum = arena.take<accumulate>(slots * positions);
  buffers.partials_start = arena.take(0);
  place_partials<Backend>(config, arena, buffers);
}

template <class Backend, class T>
void place_workspace(const router_config& config, block_arena& arena, router_buffers<T>& buffers)
{
  const std::int64_t positions = config.extent.num_positions;
  const std::int64_t slots = (std::min)(config.recompute_calls, config.plan.num_calls());
  buffers.scratch_mix = arena.take(config.call_state, slots * positions * config.extent.width);
  buffers.scratch_lse = arena.take<accumulate_t<T>>(slots * positions * config.extent.num_heads);
  for (const sweep_plan* sweep : {&config.plan.forward, &config.plan.backward}) {
    const sweep_limits limits{config.extent, sweep->max_members(), sweep->max_items()};
    buffers.workspace_bytes =
        (std::max)(buffers.workspace_bytes, Backend::template workspace_bytes<T>(limits));
  }
  buffers.workspace = arena.take(buffers.workspace_bytes);
}

//! Divides `block`, or only counts when it is null.
template <class Backend, class T>
[[nodiscard]] router_buffers<T> lay_out(const router_config& config, void* block,
                                        router_memory& memory)
{
  const std::int64_t positions = config.extent.num_positions;
  const std::int64_t elements = positions * config.extent.width;
  const std::int64_t calls = config.plan.num_calls();
  const std::int64_t rows = config.plan.num_rows();
  const bool training = config.use == router_use::training;
  router_buffers<T> buffers;
  block_arena arena{block};
  std::size_t mark = 0;
  const auto taken = [&] {
    const std::size_t since = arena.used() - mark;
    mark = arena.used();
    return since;
  };

  buffers.rows = arena.take<T>(
      ((config.rows == row_home::block ? rows : 0) + num_extra_rows(config)) * elements);
  memory.rows = taken();
  place_folded<Backend>(config, arena, buffers);
  memory.folded = taken();

  buffers.inverse_rms = arena.take<accumulate_t<T>>(rows * positions);
  if (!config.plan.schedule.private_rows.empty()) {
    buffers.private_inverse_rms = arena.take<accumulate_t<T>>((training ? calls : 1) * positions);
  }
  if (training) {
    buffers.lse = arena.take<accumulate_t<T>>(calls * positions * config.extent.num_heads);
  }
  if (config.mixes == mix_keeper::router) { place_call_states(config, arena, buffers); }
  memory.saved = taken();

  place_workspace<Backend>(config, arena, buffers);
  memory.workspace = taken();

  if (config.mixes == mix_keeper::caller) { place_call_states(config, arena, buffers); }
  memory.forward = taken();
  arena.set_used(arena.used() - memory.forward);
  mark = arena.used();
  if (training) { place_backward<Backend>(config, arena, buffers); }
  memory.backward = taken();
  arena.set_used(arena.used() - memory.backward + (std::max)(memory.forward, memory.backward));
  memory.total = arena.used();
  return buffers;
}

}  // namespace detail

MHAR_NAMESPACE_END
