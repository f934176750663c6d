// SPDX-License-Identifier: Apache-2.0
//! Routing in delta mode by sweeps, the sites of a block in one pass over their rows.
#pragma once

#include "support/device_data.cuh"

#include <mhar/device/backend.cuh>

#include <vector>

namespace mhar_bench {

//! All blocks work on the same rows, mixes and gradients: between two uses of one of them, several
//! times what the L2 cache holds has passed it. Parameters and what they are owed are every call's
//! own.
class delta_blocks
{
public:
  static constexpr int block_calls = 8;
  static constexpr int num_rows = 8;

  delta_blocks(const mhar::shape& work_extent, int blocks)
      : extent_{work_extent}, num_blocks_{blocks}
  {
    for (int c = 0; c < num_calls_; ++c) {
      mhar::site_parameters site;
      site.query = static_cast<const float*>(query_.data() + c * extent_.width);
      site.norm_weight = static_cast<const float*>(norm_weight_.data() + c * extent_.width);
      site.null_source = static_cast<const float*>(null_source_.data() + c * extent_.width);
      sites_.push_back(site);
      gates_.push_back(static_cast<const float*>(gate_.data() + c));
      mhar::site_gradients wanted;
      wanted.query = mhar::array{query_gradient_.data() + c * extent_.width};
      wanted.norm_weight = mhar::array{norm_weight_gradient_.data() + c * extent_.width};
      wanted.null_source = mhar::array{null_source_gradient_.data() + c * extent_.width};
      wanted.gate = mhar::array{gate_gradient_.data() + c};
      wanted_.push_back(wanted);
      upstream_list_.push_back(upstream_.data() + c % block_calls * elements_);
    }
    folded_.query = folded_query_.data();
    folded_.null_source = folded_null_.data();
    folded_.null_logit = null_logit_.data();
    folded_.gate = folded_gate_.data();
    folded_.logit_gate = folded_gate_.data() + num_calls_;
    folded_.packed = packed_.data();
    partials_.query = query_sums_.data();
    partials_.null_source = null_sums_.data();
    partials_.gate = gate_sums_.data();
    partials_.num_chunks = num_chunks_;
    partials_.num_calls = num_calls_;
  }

  void fold(const mhar::device::context& where) const
  {
    const std::vector<int> num_sources(static_cast<std::size_t>(num_calls_), num_rows + 1);
    mhar::fold_problem<row> problem;
    problem.extent = extent_;
    problem.num_calls = num_calls_;
    problem.sites = sites_.data();
    problem.gates = gates_.data();
    problem.num_sources = num_sources.data();
    problem.num_rows = num_rows;
    problem.folded = folded_;
    mhar::check(verbs::fold(problem, inside(where)));
  }

  //! The rows are read by the block's first call, which is finished by that pass; of the others the
  //! mix is kept, and they are finished when their partial exists.
  void forward(const mhar::device::context& where, int block, int num_new_rows) const
  {
    for (int j = 0; j < block_calls; ++j) {
      mhar::advance_problem<row> problem;
      problem.extent = extent_;
      problem.sites = folded_;
      problem.first_call = block * block_calls + j;
      problem.num_calls = j == 0 ? block_calls : 1;
      problem.rows = rows();
      problem.num_rows = j == 0 ? num_rows : 0;
      problem.num_new_rows = j == 0 ? num_new_rows : 0;
      problem.inverse_rms = inverse_rms_.data();
      problem.start = j == 0 ? mhar::pass_start::fresh : mhar::pass_start::kept;
      problem.states = {mix_.data(), mhar::element::bfloat16, elements_, state_lse_.data(), j};
      if (j == 0) { problem.outputs.mix = {mix_.data(), extent_.width}; }
      problem.outputs.y = {y_.data() + j * elements_, extent_.width};
      problem.outputs.lse = lse_.data() + problem.first_call * statistics_;
      problem.stage.partial = {static_cast<const row*>(partial_.data() + j * elements_),
                               extent_.width};
      problem.stage.gate = gates_[static_cast<std::size_t>(problem.first_call)];
      mhar::check(verbs::advance(problem, inside(where)));
    }
  }

  void begin_backward(const mhar::device::context& where) const
  {
    zero(where, query_sums_.data(), num_chunks_ * num_calls_ * extent_.width);
    zero(where, null_sums_.data(), num_chunks_ * num_calls_ * extent_.width);
    zero(where, gate_sums_.data(), std::int64_t{num_chunks_} * num_calls_);
  }

  //! The rows' gradients so far are kept states, which the block's calls are added to.
  void backward(const mhar::device::context& where, int block) const
  {
    for (int j = block_calls - 1; j >= 0; --j) {
      mhar::output_gradient_problem<row> problem;
      problem.extent = extent_;
      problem.call = block * block_calls + j;
      problem.sites = folded_;
      problem.stage.gate = gates_[static_cast<std::size_t>(problem.call)];
      problem.output_gradient = {static_cast<const row*>(upstream_.data() + j * elements_),
                                 extent_.width};
      problem.mix = {static_cast<const row*>(mix_.data() + j * elements_), extent_.width};
      problem.lse = lse_.data() + problem.call * statistics_;
      problem.call_gradient = {upstream_.data() + j * elements_, extent_.width};
      problem.dot = dot_.data() + problem.call * statistics_;
      problem.partials = partials_;
      mhar::check(verbs::output_gradient(problem, inside(where)));
    }
    mhar::gather_problem<row> problem = gather(num_rows - 1, num_rows);
    problem.first_call = block * block_calls;
    problem.num_calls = block_calls;
    problem.start = block == num_blocks_ - 1 ? mhar::pass_start::fresh : mhar::pass_start::kept;
    problem.end = mhar::pass_end::keep_all;
    mhar::check(verbs::gather(problem, inside(where)));
  }

  void finish_backward(const mhar::device::context& where) const
  {
    for (int n = num_rows - 1; n >= 0; --n) {
      mhar::gather_problem<row> problem = gather(n, 1);
      problem.start = mhar::pass_start::kept;
      problem.row_gradient = {row_gradients_.data() + n * elements_, extent_.width};
      mhar::check(verbs::gather(problem, inside(where)));
    }
    mhar::reduce_problem<row> problem;
    problem.extent = extent_;
    problem.num_sites = num_calls_;
    problem.sites = sites_.data();
    problem.gradients = wanted_.data();
    problem.partials = partials_;
    mhar::check(verbs::reduce(problem, inside(where)));
  }

  //! Matrices of bfloat16 that must move. A block forward, `num_forwards` times: rows, the mixes
  //! written, seven of them read again, partials, y. Backward: do and mix for D; then rows, do, and
  //! the row gradients read and written, which the first block does not read; in the end every row is
  //! finished from its gradient so far.
  [[nodiscard]] double bytes(int num_forwards) const
  {
    const double forward = num_rows + 2 * block_calls - 1 + 2 * block_calls;
    const double backward = 2 * block_calls + num_rows + block_calls + 2 * num_rows;
    const double matrices =
        num_blocks_ * (num_forwards * forward + backward) - num_rows + 3 * num_rows;
    const double numbers =
        num_calls_ * static_cast<double>(statistics_) * 4 * (num_forwards * 3 + 5);
    return matrices * static_cast<double>(elements_) * 2 + numbers;
  }

private:
  using row = mhar::bfloat16;
  using verbs = mhar::device::backend;

  static constexpr std::size_t workspace_size = std::size_t{64} << 20;

  [[nodiscard]] mhar::const_rows<row> rows() const
  {
    return mhar::source_major<row>(rows_.data(), extent_.num_positions, extent_.width);
  }
  [[nodiscard]] mhar::device::context inside(mhar::device::context where) const
  {
    const mhar::sweep_limits limits{extent_, block_calls, num_rows};
    const std::size_t bytes = verbs::workspace_bytes<row>(limits);
    if (bytes > workspace_size) { throw std::runtime_error("the workspace is too small"); }
    where.workspace = workspace_.data();
    where.workspace_bytes = bytes;
    return where;
  }
  static void zero(const mhar::device::context& where, float* sums, std::int64_t count)
  {
    mhar::check(verbs::zero(sums, static_cast<std::size_t>(count) * sizeof(float), where));
  }
  //! Rows top, top - 1, ... and their states.
  [[nodiscard]] mhar::gather_problem<row> gather(int top_row, int count) const
  {
    mhar::gather_problem<row> problem;
    problem.extent = extent_;
    problem.sites = folded_;
    problem.rows = rows();
    problem.inverse_rms = inverse_rms_.data();
    problem.top_row = top_row;
    problem.num_rows = count;
    problem.call_gradients = {nullptr, 0, extent_.width, upstream_list_.data()};
    problem.lse = lse_.data();
    problem.dot = dot_.data();
    problem.states = {row_states_.data(), mhar::element::bfloat16, elements_, head_sum_.data(),
                      num_rows - 1 - top_row};
    problem.partials = partials_;
    return problem;
  }

  mhar::shape extent_;
  int num_blocks_;
  int num_calls_ = num_blocks_ * block_calls;
  std::int64_t elements_ = extent_.num_positions * extent_.width;
  std::int64_t statistics_ = extent_.num_positions * extent_.num_heads;
  int num_chunks_ = verbs::num_chunks(extent_);
  std::vector<mhar::site_parameters> sites_;
  std::vector<mhar::const_array> gates_;
  std::vector<mhar::site_gradients> wanted_;
  std::vector<const row*> upstream_list_;  // [S]
  mhar::folded_sites<float> folded_;
  mhar::gradient_partials<float> partials_;
  device_array<row> rows_{num_rows * elements_};
  device_array<row> partial_{block_calls * elements_};
  device_array<row> upstream_{block_calls * elements_, 1e-3f};
  device_array<row> y_{block_calls * elements_};
  device_array<row> mix_{block_calls * elements_};
  device_array<row> row_states_{num_rows * elements_, 1e-3f};
  device_array<row> row_gradients_{num_rows * elements_, 1e-3f};
  device_array<float> head_sum_{num_rows * extent_.num_positions};
  device_array<float> lse_{num_calls_ * statistics_};
  device_array<float> state_lse_{block_calls * statistics_};
  device_array<float> dot_{num_calls_ * statistics_};
  device_array<float> inverse_rms_{extent_.num_positions * num_rows};
  device_array<float> query_{num_calls_ * extent_.width, 0.02f};
  device_array<float> norm_weight_{num_calls_ * extent_.width};
  device_array<float> null_source_{num_calls_ * extent_.width, 0.1f};
  device_array<float> gate_{num_calls_};
  device_array<float> folded_query_{num_calls_ * extent_.width};
  device_array<float> folded_null_{num_calls_ * extent_.width};
  device_array<float> null_logit_{std::int64_t{num_calls_} * extent_.num_heads};
  device_array<float> folded_gate_{2 * num_calls_};
  device_array<float> packed_{
      static_cast<std::int64_t>(verbs::packed_bytes<row>(extent_, num_calls_) / sizeof(float))};
  device_array<float> query_gradient_{num_calls_ * extent_.width};
  device_array<float> norm_weight_gradient_{num_calls_ * extent_.width};
  device_array<float> null_source_gradient_{num_calls_ * extent_.width};
  device_array<float> gate_gradient_{num_calls_};
  device_array<float> query_sums_{num_chunks_ * num_calls_ * extent_.width};
  device_array<float> null_sums_{num_chunks_ * num_calls_ * extent_.width};
  device_array<float> gate_sums_{std::int64_t{num_chunks_} * num_calls_};
  device_array<float> workspace_{static_cast<std::int64_t>(workspace_size / sizeof(float))};
};

}  // namespace mhar_bench
