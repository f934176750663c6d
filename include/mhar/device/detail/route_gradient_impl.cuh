// SPDX-License-Identifier: Apache-2.0
//! Launcher of the backward of one routing call.
#pragma once

#include <mhar/device/detail/check_problem.cuh>
#include <mhar/device/detail/launch.cuh>
#include <mhar/device/detail/route_gradient_plan.cuh>
#include <mhar/device/route_gradient.cuh>
#include <mhar/kernel/route_gradient.cuh>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! Hands out the workspace; counts only when there is no memory.
class gradient_workspace
{
public:
  explicit gradient_workspace(void* memory) noexcept : memory_{static_cast<unsigned char*>(memory)}
  {
  }
  template <class Value>
  Value* take(bool wanted, std::int64_t count) noexcept
  {
    if (!wanted) { return nullptr; }
    unsigned char* const at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    const auto size = static_cast<std::size_t>(count) * sizeof(Value);
    bytes_ += (size + 255) / 256 * 256;
    return reinterpret_cast<Value*>(at);
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

private:
  unsigned char* memory_;
  std::size_t bytes_ = 0;
};

//! Blocks that a multiprocessor of an H200 has at a time.
template <class T>
int blocks_of_h200(const route_gradient_problem<T>& problem) noexcept
{
  constexpr int value_bytes = static_cast<int>(sizeof(accumulate_t<T>));
  gradient_budget budget;
  budget.shared_bytes = 227 << 10;
  budget.multiprocessor_bytes = 228 << 10;
  route_gradient_plan plan;
  if (!make_ring_plan(problem, budget, plan)) { plan = make_direct_plan(problem); }
  return plan.blocks(value_bytes, budget.multiprocessor_bytes);
}

template <class T>
block::call_partials<accumulate_t<T>> make_partials(const route_gradient_problem<T>& problem,
                                                    gradient_workspace& workspace) noexcept
{
  using accumulate = accumulate_t<T>;
  const site_gradients& wanted = problem.gradients;
  const std::int64_t width = problem.extent.width;
  const std::int64_t num_sources = problem.num_rows + (problem.site.null_source ? 1 : 0);
  block::call_partials<accumulate> partials;
  partials.num_chunks =
      tuning::gradient_chunks(problem.extent.num_positions, blocks_of_h200(problem));
  const std::int64_t chunks = partials.num_chunks;
  partials.query = workspace.take<accumulate>(wanted.query || wanted.norm_weight, chunks * width);
  partials.null_source =
      workspace.take<accumulate>(static_cast<bool>(wanted.null_source), chunks * width);
  partials.output_norm =
      workspace.take<accumulate>(static_cast<bool>(wanted.output_norm_weight), chunks * width);
  partials.bias = workspace.take<accumulate>(static_cast<bool>(wanted.bias), chunks * num_sources);
  partials.gate = workspace.take<accumulate>(static_cast<bool>(wanted.gate), chunks);
  return partials;
}

template <class T, int Capacity>
block::route_gradient_params<T, Capacity> make_params(
    const route_gradient_problem<T>& problem, const route_gradient_plan& plan,
    const block::call_partials<accumulate_t<T>>& partials, accumulate_t<T>* arena_memory) noexcept
{
  using accumulate = accumulate_t<T>;
  block::route_gradient_params<T, Capacity> call;
  call.extent = problem.extent;
  call.num_rows = problem.num_rows;
  call.num_null = problem.site.null_source ? 1 : 0;
  call.rows = block::make_row_pointers<T, Capacity>(problem.rows, problem.num_rows);

  const gradient_rows& gradients = problem.row_gradients;
  call.row_gradients.base = static_cast<unsigned char*>(gradients.base);
  // A kernel asks each row for its address: where there are none, every row's must be null.
  call.row_gradients.row_bytes =
      gradients.base == nullptr ? 0 : gradients.row_stride * size_of(gradients.type);
  call.row_gradients.position_stride = gradients.position_stride;
  call.row_gradients.type = gradients.type;
  call.row_gradients.mode = gradients.mode;
  call.row_gradients.listed = gradients.list != nullptr;
  for (int n = 0; gradients.list != nullptr && n < problem.num_rows; ++n) {
    call.row_gradients.list[n] = static_cast<unsigned char*>(gradients.list[n]);
  }

  call.query = problem.site.query;
  call.norm_weight = problem.site.norm_weight;
  call.bias = problem.site.bias;
  call.null_source = problem.site.null_source;
  call.scale = static_cast<accumulate>(problem.site.scale);
  call.eps = static_cast<accumulate>(problem.site.eps);
  call.rounding = problem.site.rounding;
  call.partial = problem.stage.partial;
  call.gate = problem.stage.gate;
  call.norm = problem.stage.norm;
  call.output_weight = problem.stage.norm_weight;
  call.output_eps = static_cast<accumulate>(problem.stage.norm_eps);

  call.output_gradient = problem.output_gradient;
  call.combined_gradient = problem.combined_gradient;
  call.lse = problem.lse;
  call.inverse_rms = problem.inverse_rms;
  call.mix = problem.mix;
  call.combined = problem.combined;
  call.partial_gradient = problem.partial_gradient;
  call.partials = partials;

  call.map = plan.map;
  call.arena = plan.arena;
  call.arena_memory = plan.arena_in_workspace ? arena_memory : nullptr;
  call.num_stages = plan.num_stages;
  call.rows_per_stage = plan.rows_per_stage;
  call.slot_bytes = plan.slot_bytes;
  call.old_gradient_bytes = plan.old_gradient_bytes;
  for (int i = 0; i < 4; ++i) { call.input_offsets[i] = plan.input_offsets[i]; }
  call.input_bytes = plan.input_bytes;
  call.ring_bytes = plan.ring_bytes;
  return call;
}

template <class T>
struct gradient_launch
{
  const route_gradient_problem<T>& problem;
  const context& where;
  const device_properties& properties;
  const block::call_partials<accumulate_t<T>>& partials;
  accumulate_t<T>* arena_memory;

  template <int Capacity, class Kernel>
  [[nodiscard]] status run(Kernel kernel, const route_gradient_plan& plan) const noexcept
  {
    constexpr int value_bytes = static_cast<int>(sizeof(accumulate_t<T>));
    const std::int64_t shared = plan.shared_bytes(value_bytes);
    std::int64_t grid = std::min<std::int64_t>(
        partials.num_chunks,
        std::int64_t{properties.multiprocessors} *
            plan.blocks(value_bytes, properties.shared_memory_per_multiprocessor));
    if (plan.arena_in_workspace) {
      grid = std::min<std::int64_t>(grid, tuning::route_gradient.scratch_blocks);
    }
    launch_shape shape;
    shape.grid = static_cast<unsigned>(grid);
    shape.block = static_cast<unsigned>(plan.map.num_threads);
    shape.shared_memory = static_cast<std::size_t>(shared);
    return launch(where, properties, shape, kernel,
                  make_params<T, Capacity>(problem, plan, partials, arena_memory));
  }

  //! The kernel with a ring that holds `Chunks` chunks per thread; `done` says whether there was
  //! one for this problem.
  template <int Chunks>
  [[nodiscard]] status run_ring(bool& done) const noexcept
  {
    constexpr auto& policy = tuning::route_gradient;
    auto *const kernel = &kernel::route_gradient_kernel < T, Chunks, policy.listed_rows,
                Chunks == 1 ? policy.one_chunk_threads : policy.two_chunks_threads > ;
    gradient_budget budget;
    budget.shared_bytes = properties.shared_memory_per_block;
    budget.multiprocessor_bytes = properties.shared_memory_per_multiprocessor;
    route_gradient_plan plan;
    done = make_ring_plan(problem, budget, plan);
    return done ? run<policy.listed_rows>(kernel, plan) : status{};
  }

  [[nodiscard]] status run_direct() const noexcept
  {
    constexpr auto& policy = tuning::route_gradient;
    auto* const kernel =
        &kernel::route_gradient_kernel<T, 0, policy.listed_rows_direct, policy.direct_threads>;
    return run<policy.listed_rows_direct>(kernel, make_direct_plan(problem));
  }
};

//! Whether the kernels with a ring can use a matrix: rows' type or the arithmetic's, 16-byte
//! boundaries.
template <class T>
[[nodiscard]] bool suits_ring(const const_matrix& view, std::int64_t num_positions) noexcept
{
  if (!view) { return true; }
  const std::int64_t step = 16 / size_of(view.type);
  return (view.type == element_of<T>::value || view.type == element_of<accumulate_t<T>>::value) &&
         reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
         (num_positions <= 1 || view.position_stride % step == 0);
}

template <class T>
[[nodiscard]] bool suits_ring(const route_gradient_problem<T>& problem) noexcept
{
  const std::int64_t positions = problem.extent.num_positions;
  const int num_rows = problem.num_rows;
  if (problem.site.rounding != key_rounding::none ||
      !block::rows_are_aligned(problem.rows, num_rows, positions)) {
    return false;
  }
  const gradient_rows& gradients = problem.row_gradients;
  if (num_rows > tuning::route_gradient.listed_rows &&
      (gradients.list != nullptr || !block::is_strided(problem.rows, num_rows))) {
    return false;
  }
  for (int n = 0; gradients && n < num_rows; ++n) {
    if (!suits_ring<T>(gradients.row(n), positions)) { return false; }
  }
  const const_matrix views[] = {
      problem.output_gradient, problem.combined_gradient, problem.mix,
      problem.combined,        problem.stage.partial,     problem.partial_gradient};
  for (const const_matrix& view : views) {
    if (!suits_ring<T>(view, positions)) { return false; }
  }
  return true;
}

template <class T>
status launch_gradient(const gradient_launch<T>& call) noexcept
{
  const int chunks = register_chunks(call.problem.extent, thread::chunk_width<T>);
  // Rows of doubles are for checking gradients, not for speed: one kernel is enough.
  if constexpr (sizeof(T) < 8) {
    bool done = false;
    status outcome;
    if (chunks > 0 && suits_ring(call.problem)) {
      outcome = chunks == 1 ? call.template run_ring<1>(done) : call.template run_ring<2>(done);
    }
    if (done || !outcome.ok()) { return outcome; }
  }
  static_cast<void>(chunks);
  return call.run_direct();
}

template <class T>
status launch_sums(const route_gradient_problem<T>& problem, const context& where,
                   const device_properties& properties,
                   const block::call_partials<accumulate_t<T>>& partials) noexcept
{
  using accumulate = accumulate_t<T>;
  block::parameter_sums_params<accumulate> sums;
  const site_gradients& wanted = problem.gradients;
  sums.partials = partials;
  sums.width = problem.extent.width;
  sums.num_sources = problem.num_rows + (problem.site.null_source ? 1 : 0);
  sums.scale = static_cast<accumulate>(problem.site.scale);
  sums.query = problem.site.query;
  sums.norm_weight = problem.site.norm_weight;
  sums.query_gradient = wanted.query;
  sums.norm_weight_gradient = wanted.norm_weight;
  sums.null_source_gradient = wanted.null_source;
  sums.output_norm_gradient = wanted.output_norm_weight;
  sums.bias_gradient = wanted.bias;
  sums.gate_gradient = wanted.gate;
  constexpr int tile = block::parameter_sums<accumulate>::num_columns;
  const std::int64_t columns = std::max<std::int64_t>(sums.width, sums.num_sources);
  launch_shape shape;
  // Arrays up to the last one that is wanted.
  const unsigned arrays = wanted.gate                 ? 5
                          : wanted.bias               ? 4
                          : wanted.output_norm_weight ? 3
                          : wanted.null_source        ? 2
                                                      : 1;
  shape.grid = dim3(static_cast<unsigned>((columns + tile - 1) / tile), arrays);
  shape.block = block::parameter_sums<accumulate>::num_threads;
  return launch(where, properties, shape, &kernel::parameter_sums_kernel<accumulate>, sums);
}

}  // namespace detail

template <class T>
std::size_t workspace_bytes(const route_gradient_problem<T>& problem, const context&) noexcept
{
  if (!mhar::detail::has_sizes(problem.extent, problem.num_rows)) { return 0; }
  detail::gradient_workspace workspace{nullptr};
  static_cast<void>(detail::make_partials(problem, workspace));
  const detail::route_gradient_plan plan = detail::make_direct_plan(problem);
  static_cast<void>(workspace.take<accumulate_t<T>>(
      plan.arena_in_workspace && plan.arena.size > 0,
      std::int64_t{tuning::route_gradient.scratch_blocks} * plan.arena.size));
  return workspace.bytes();
}

template <class T>
status route_gradient(const route_gradient_problem<T>& problem, const context& where) noexcept
{
  status outcome = detail::check_problem(problem, where);
  if (!outcome.ok()) { return outcome; }
  const auto refuse = [](code failure, const char* argument, const char* message) {
    status result;
    result.code = failure;
    result.argument = argument;
    result.message = message;
    return result;
  };
  const bool listed =
      problem.row_gradients.list != nullptr || !block::is_strided(problem.rows, problem.num_rows);
  if (listed && problem.num_rows > tuning::route_gradient.listed_rows_direct) {
    return refuse(code::unsupported, "rows", "more than 1024 rows must lie at equal distances");
  }
  const detail::route_gradient_plan direct = detail::make_direct_plan(problem);
  if (direct.arena.size < 0) {
    return refuse(code::unsupported, "extent.width",
                  "too wide for 32-bit offsets of scratch memory");
  }
  detail::gradient_workspace workspace{where.workspace};
  const auto partials = detail::make_partials(problem, workspace);
  auto* const arena_memory = workspace.take<accumulate_t<T>>(
      direct.arena_in_workspace,
      std::int64_t{tuning::route_gradient.scratch_blocks} * direct.arena.size);
  if (workspace.bytes() > (where.workspace == nullptr ? 0 : where.workspace_bytes)) {
    return refuse(code::small_workspace, "workspace",
                  "smaller than workspace_bytes(problem, context)");
  }

  detail::device_properties properties;
  outcome = detail::query(properties);
  if (outcome.ok() && problem.extent.num_positions > 0) {
    outcome = detail::launch_gradient(
        detail::gradient_launch<T>{problem, where, properties, partials, arena_memory});
  }
  const site_gradients& wanted = problem.gradients;
  const bool sums = wanted.query || wanted.norm_weight || wanted.null_source || wanted.bias ||
                    wanted.gate || wanted.output_norm_weight;
  if (outcome.ok() && sums) {
    // Its blocks wait for the kernel before by themselves, and may as well be there when it ends.
    context after = where;
    if (problem.extent.num_positions > 0) { after.dependency = dependent_launch::programmatic; }
    outcome = detail::launch_sums(problem, after, properties, partials);
  }
  return outcome;
}

MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
