// SPDX-License-Identifier: Apache-2.0
//! One pass of a model through a depth_router (docs/sweeps.md): rows in, calls out, and their
//! gradients back as autograd comes by.
#pragma once

#include "tensors.hpp"

#include <mhar/router/depth_router.hpp>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace mhar_torch {

//! The tensors of a read. An undefined one is absent; `private_gradient` and `partial_gradient`
//! belong to the backward, where `y` is the upstream gradient.
struct call_tensors
{
  Tensor y;
  Tensor mix;
  Tensor combined;
  Tensor private_row;
  Tensor partial;
  Tensor private_gradient;
  Tensor partial_gradient;
};

//! A pass, whatever its device and element type.
class depth_pass
{
public:
  virtual ~depth_pass() = default;
  virtual void write(int row, const Tensor& value) = 0;
  //! Writes x [..., k] times the transpose of weight [d, k].
  virtual void write_linear(int row, const Tensor& x, const Tensor& weight) = 0;
  virtual void read(int call, const call_tensors& tensors) = 0;
  virtual void read_backward(int call, const call_tensors& tensors) = 0;
  //! Writes the gradient of a row; an undefined one is not wanted.
  virtual void write_backward(int row, const Tensor& gradient) = 0;
  //! Writes the gradients of the sites' parameters.
  virtual void finish_backward(const std::vector<mhar::site_gradients>& gradients) = 0;
  //! The place of a row, for a producer that writes it there.
  virtual Tensor row(int row) = 0;
  //! Where the upstream gradient of a call belongs, and what stands for it where it was written there: one element, which
  //! its producer expands to the gradient's shape.
  virtual std::tuple<Tensor, Tensor> gradient_place(int call) = 0;
  [[nodiscard]] virtual at::TensorOptions options() const = 0;
};

template <class Where, class T>
class depth_pass_on final : public depth_pass
{
public:
  //! `parameters` are what the sites of `config` point to.
  depth_pass_on(mhar::router_config config, at::IntArrayRef sizes, at::TensorOptions options,
                std::vector<Tensor> parameters)
      : sizes_{sizes.vec()},
        options_{options},
        parameters_{std::move(parameters)},
        router_{std::move(config)}
  {
    constexpr std::uintptr_t alignment = 256;
    const Where here{options_.device()};
    const std::size_t bytes = router_.memory().total;
    memory_ = bytes_on(options_.device(), bytes + alignment);
    const auto start = reinterpret_cast<std::uintptr_t>(memory_.mutable_data_ptr());
    void* const block = reinterpret_cast<void*>((start + alignment - 1) / alignment * alignment);
    mhar::check(router_.bind(block, bytes));
    mhar::check(router_.begin_forward(here.context()));
  }

  void write(int row, const Tensor& value) override
  {
    TORCH_CHECK(value.sizes() == sizes_ && value.scalar_type() == options_.dtype() &&
                    value.device() == options_.device(),
                "mhar: a row of ", sizes_, " ", options_.dtype(), " on ", options_.device(),
                " cannot be ", value.sizes(), " ", value.dtype(), " on ", value.device());
    const Tensor place = append(row);
    if (!place.defined()) { return; }
    const bool written = value.const_data_ptr() == place.const_data_ptr() && value.is_contiguous();
    if (!written) { place.copy_(value); }
  }

  void write_linear(int row, const Tensor& x, const Tensor& weight) override
  {
    TORCH_CHECK(weight.dim() == 2 && weight.size(0) == width() && x.dim() >= 1 &&
                    x.size(-1) == weight.size(1) &&
                    x.numel() == router_.config().extent.num_positions * weight.size(1),
                "mhar: a row of ", sizes_, " is no product of ", x.sizes(), " and ",
                weight.sizes());
    TORCH_CHECK(x.device() == options_.device() && weight.device() == options_.device(),
                "mhar: a row on ", options_.device(), " is no product on ", x.device(), " and ",
                weight.device());
    TORCH_CHECK(x.scalar_type() == options_.dtype() && weight.scalar_type() == options_.dtype(),
                "mhar: a row of ", options_.dtype(), " is no product of ", x.dtype(), " and ",
                weight.dtype());
    const Tensor place = append(row);
    if (!place.defined()) { return; }
    Tensor matrix = place.view({router_.config().extent.num_positions, width()});
    at::mm_out(matrix, x.reshape({matrix.size(0), weight.size(1)}), weight.t());
  }

  void read(int call, const call_tensors& tensors) override
  {
    const bool is_again = call < next_call_ && is_in_backward();
    TORCH_CHECK(call == next_call_ || is_again, "mhar: site ", call, " is read where site ",
                next_call_, " is next");
    const Tensor private_row = in(tensors.private_row);
    const Tensor partial = in(tensors.partial);
    mhar::call_inputs<T> inputs = inputs_of(private_row);
    if (partial.defined()) { inputs.partial = matrix_of(partial); }
    mhar::route_outputs<T> outputs;
    outputs.y = out(tensors.y);
    outputs.mix = out(tensors.mix);
    outputs.combined = out(tensors.combined);
    const Where here{options_.device()};
    if (is_again) {
      mhar::check(router_.recompute(here.context(), call, inputs, outputs));
      return;
    }
    mhar::check(router_.route(here.context(), call, inputs, outputs));
    ++next_call_;
  }

  void read_backward(int call, const call_tensors& tensors) override
  {
    start_or_continue(call < calls_left_);
    skip_to(call + 1, rows_read_by(call));
    const Tensor mix = in(tensors.mix);
    mhar::call_upstream upstream;
    upstream.mix = matrix_of(mix);
    if (is_plain(call) && !tensors.partial_gradient.defined()) {
      // The next pass over calls takes the gradient from its slot, with the mix beside it.
      const mhar::matrix slot = router_.gradient_slot(call);
      if (!is_in_place(call, tensors.y)) { tensor_at(slot.data).copy_(tensors.y); }
      upstream.output_gradient = slot;
      pending_mixes_.push_back(mix);
      take(call, upstream, {}, {});
      return;
    }
    const Tensor dy = is_in_place(call, tensors.y) ? in(tensor_at(router_.gradient_slot(call).data))
                                                   : in(tensors.y);
    const Tensor combined = in(tensors.combined);
    upstream.output_gradient = matrix_of(dy);
    upstream.combined = matrix_of(combined.defined() ? combined : mix);
    upstream.partial_gradient = out(tensors.partial_gradient);
    take(call, upstream, in(tensors.private_row), out(tensors.private_gradient));
  }

  void write_backward(int row, const Tensor& gradient) override
  {
    start_or_continue(row < rows_left_);
    skip_to(router_.config().plan.first_reader(row), row + 1);
    give(row, out(gradient));
  }

  void finish_backward(const std::vector<mhar::site_gradients>& gradients) override
  {
    start_or_continue(true);
    skip_to(0, 0);
    const Where here{options_.device()};
    mhar::check(router_.finish_backward(here.context(), gradients.data()));
    running_ = false;
  }

  Tensor row(int row) override
  {
    TORCH_CHECK(row >= 0 && row < rows_of_plan(), "mhar: the pass has no row ", row);
    return tensor_at(const_cast<T*>(router_.row(row)));
  }

  std::tuple<Tensor, Tensor> gradient_place(int call) override
  {
    TORCH_CHECK(call >= 0 && call < router_.config().plan.num_calls() && is_plain(call),
                "mhar: site ", call, " has no place for a gradient: more than its mix is read");
    T* const place = router_.gradient_place(call);
    TORCH_CHECK(place != nullptr, "mhar: a pass without gradients has no place for one");
    in_place_.resize(static_cast<std::size_t>(router_.config().plan.num_calls()));
    Tensor& in_place = in_place_[static_cast<std::size_t>(call)];
    if (!in_place.defined()) { in_place = at::empty({1}, options_); }
    return {tensor_at(place), in_place};
  }

  [[nodiscard]] at::TensorOptions options() const override { return options_; }

private:
  [[nodiscard]] int64_t width() const { return router_.config().extent.width; }
  [[nodiscard]] int rows_of_plan() const { return router_.config().plan.num_rows(); }
  [[nodiscard]] int rows_read_by(int call) const
  {
    return router_.config().plan.schedule.num_rows[static_cast<std::size_t>(call)];
  }
  [[nodiscard]] bool has_private(int call) const
  {
    return router_.config().plan.schedule.has_private(call);
  }
  [[nodiscard]] mhar::matrix out(const Tensor& tensor) const
  {
    if (!tensor.defined()) { return {}; }
    TORCH_CHECK(tensor.numel() == router_.config().extent.num_positions * width(),
                "mhar: ", tensor.sizes(), " beside rows of ", sizes_);
    return output_of(tensor, width());
  }
  [[nodiscard]] Tensor in(const Tensor& tensor) const
  {
    if (!tensor.defined()) { return tensor; }
    TORCH_CHECK(tensor.sizes() == sizes_ && tensor.device() == options_.device(),
                "mhar: ", tensor.sizes(), " on ", tensor.device(), " beside rows of ", sizes_,
                " on ", options_.device());
    return as_matrix(tensor, router_.config().extent.num_positions, width());
  }

  [[nodiscard]] mhar::call_inputs<T> inputs_of(const Tensor& private_row) const
  {
    mhar::call_inputs<T> inputs;
    if (private_row.defined()) {
      TORCH_CHECK(private_row.scalar_type() == options_.dtype(),
                  "mhar: a private row has the type of the rows");
      inputs.private_row = static_cast<const T*>(private_row.const_data_ptr());
      inputs.private_stride = stride_of(private_row);
    }
    return inputs;
  }

  //! Checkpointed regions are run again inside of a backward, and nothing else is.
  [[nodiscard]] static bool is_in_backward()
  {
    return torch::autograd::get_current_graph_task_id() != -1;
  }

  //! The place of the next row; undefined for a row that was written before: of a sublayer that
  //! is computed again.
  [[nodiscard]] Tensor append(int row)
  {
    if (row < router_.num_rows() && is_in_backward()) { return {}; }
    TORCH_CHECK(row == router_.num_rows(), "mhar: row ", row, " is written where row ",
                router_.num_rows(), " is next");
    Tensor place = this->row(row);
    TORCH_CHECK(router_.append() != nullptr, "mhar: the pass has no row ", row);
    return place;
  }

  //! A row's worth of the pass's memory.
  [[nodiscard]] Tensor tensor_at(void* data) const
  {
    return at::for_blob(data, sizes_)
        .deleter([memory = memory_](void*) {})
        .options(options_)
        .target_device(options_.device())
        .make_tensor();
  }

  //! Nothing follows the mix of the call.
  [[nodiscard]] bool is_plain(int call) const
  {
    const mhar::router_site& site = router_.config().sites[static_cast<std::size_t>(call)];
    return site.stage.norm == mhar::output_norm::none && !site.stage.gate &&
           !site.parameters.null_source && !has_private(call);
  }

  //! The gradient stands for one that is in its place already. What was promised to be there and is not comes from a call that
  //! no loss reaches, or is a sum with what another reader of the mix has added.
  [[nodiscard]] bool is_in_place(int call, const Tensor& gradient) const
  {
    for (std::size_t other = 0; other < in_place_.size(); ++other) {
      if (!in_place_[other].defined() ||
          gradient.const_data_ptr() != in_place_[other].const_data_ptr()) {
        continue;
      }
      TORCH_CHECK(other == static_cast<std::size_t>(call), "mhar: the gradient of what site ", call,
                  " read was written in the place of site ", other, "'s");
      return true;
    }
    const auto index = static_cast<std::size_t>(call);
    const bool is_promised = index < in_place_.size() && in_place_[index].defined();
    TORCH_CHECK(!is_promised || gradient.numel() <= 1 || gradient.stride(-1) == 0,
                "mhar: what site ", call,
                " read has another reader than rms_norm with the place of its gradient");
    return false;
  }

  //! A node of another backward than the last one's, or one that has been visited already, starts
  //! over; what the last one left out is completed without an upstream.
  void start_or_continue(bool is_ahead)
  {
    const int task = torch::autograd::get_current_graph_task_id();
    if (running_ && is_ahead && task == task_) { return; }
    const Where here{options_.device()};
    if (running_) {
      skip_to(0, 0);
      mhar::check(router_.finish_backward(here.context(), nullptr));
      running_ = false;
    }
    TORCH_CHECK(next_call_ == router_.config().plan.num_calls(),
                "mhar: the backward of a pass "
                "begins before site ",
                next_call_, " was read: a pass ends with its last site");
    const mhar::status begun = router_.begin_backward(here.context());
    TORCH_CHECK(begun.code != mhar::code::wrong_order,
                "mhar: the rows of this pass are gone: with "
                "reuse_rows=True the first backward writes gradients in their place");
    mhar::check(begun);
    running_ = true;
    task_ = task;
    calls_left_ = next_call_;
    rows_left_ = rows_of_plan();
  }

  //! Brings the backward to where calls [0, calls) and rows [0, rows) are left: what autograd did
  //! not come by had no gradient.
  void skip_to(int calls, int rows)
  {
    while (calls_left_ > calls || rows_left_ > rows) {
      const bool row_is_next =
          rows_left_ > 0 && (calls_left_ == 0 || rows_left_ > rows_read_by(calls_left_ - 1));
      if (row_is_next) {
        give(rows_left_ - 1, {});
        continue;
      }
      // Any row serves as the private one, times zero, and so does any mix.
      const Tensor zeros = at::zeros(sizes_, options_);
      const Tensor matrix = in(zeros);
      mhar::call_upstream upstream;
      upstream.output_gradient = upstream.mix = upstream.combined = matrix_of(matrix);
      const int call = calls_left_ - 1;
      take(call, upstream, has_private(call) ? in(row(0)) : Tensor{}, {});
    }
  }

  void take(int call, const mhar::call_upstream& upstream, const Tensor& private_row,
            const mhar::matrix& private_gradient)
  {
    const Where here{options_.device()};
    mhar::check(router_.backward_call(here.context(), call, upstream));
    if (has_private(call)) {
      mhar::check(router_.private_row_gradient(here.context(), call, inputs_of(private_row),
                                               private_gradient));
    }
    calls_left_ = call;
  }

  void give(int row, const mhar::matrix& gradient)
  {
    const Where here{options_.device()};
    mhar::check(router_.row_gradient(here.context(), row, gradient));
    pending_mixes_.clear();
    rows_left_ = row;
  }

  std::vector<int64_t> sizes_;
  at::TensorOptions options_;
  std::vector<Tensor> parameters_;
  mhar::depth_router<typename Where::backend, T> router_;
  Tensor memory_;
  std::vector<Tensor> pending_mixes_;  // of calls that the next pass over calls reads first
  //! Of calls whose gradients' places were handed out: what stands for them.
  std::vector<Tensor> in_place_;
  int next_call_ = 0;
  // The backward at hand: calls [0, calls_left_) and rows [0, rows_left_) have not been visited.
  bool running_ = false;
  int task_ = -1;
  int calls_left_ = 0;
  int rows_left_ = 0;
};

}  // namespace mhar_torch
