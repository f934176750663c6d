// SPDX-License-Identifier: Apache-2.0
//! Runs a sweep_case through a depth_router on any backend, in the ways that a model may choose
//! between.
#pragma once

#include "backend_memory.hpp"
#include "sweep_case.hpp"

#include <mhar/router/depth_router.hpp>

#include <memory>
#include <utility>

namespace mhar_test {

//! Where the producers of dy write it.
enum class upstream_home
{
  slots,    //!< into gradient_slot
  buffers,  //!< elsewhere
  mixed     //!< every third call elsewhere
};

struct run_choices
{
  mhar::depth_plan plan;
  mhar::element call_state = mhar::element::float64;
  mhar::element row_state = mhar::element::float64;
  mhar::row_home rows = mhar::row_home::block;
  mhar::gradient_home gradients = mhar::gradient_home::block;
  mhar::mix_keeper mixes = mhar::mix_keeper::caller;
  int recompute_calls = 0;
  mhar::wanted_gradients wanted;
  upstream_home upstream = upstream_home::slots;
  bool narrow_mixes =
      true;  //!< mixes that the caller keeps have the rows' type, else the accumulation type
  //! y has the rows' type, and o is not asked for; a backward with an output norm then is not possible.
  bool narrow_outputs = false;
  bool narrow_gradients =
      false;  //!< rows' gradients have the rows' type, else the accumulation type
};

//! All arrays of one pass in a backend's memory, and its router: one object per micro-batch.
template <class Backend, class T>
class sweep_run
{
public:
  using real = mhar::accumulate_t<T>;
  template <class Element>
  using array = backend_array<Backend, Element>;
  using access = backend_access<Backend>;

  sweep_run(const sweep_case<T>& data, const run_choices& choices)
      : data_{data},
        choices_{choices},
        router_{configure()},
        block_{static_cast<std::int64_t>(router_.memory().total)},
        context_{access::context()}
  {
    mhar::check(router_.bind(block_.data(), block_.size()));
    const std::int64_t width = extent().width;
    if (choices.rows == mhar::row_home::strided) {
      // Token-major where gradients need no place of their own in it, else rows with gaps between
      // them.
      const bool token_major = choices.gradients == mhar::gradient_home::block;
      const std::int64_t row_stride = token_major ? width : elements() + 3;
      const std::int64_t position_stride =
          token_major ? width * std::max(data.num_rows(), 1) + 5 : width;
      buffer_ = std::make_unique<array<T>>(data.num_rows() * (elements() + 3) + elements() * 5 + 5);
      mhar::check(router_.bind_rows(buffer_->data(), row_stride, position_stride));
      position_stride_ = position_stride;
    }
    for (int c = 0; c < data.num_calls(); ++c) {
      const auto call = static_cast<std::size_t>(c);
      y_.emplace_back(elements());
      narrow_y_.emplace_back(elements());
      combined_.emplace_back(elements());
      mix_.emplace_back(elements());
      wide_mix_.emplace_back(elements());
      private_.emplace_back(data.private_rows[call]);
      partial_.emplace_back(data.partials[call]);
      dy_.emplace_back(data.dy[call]);
      combined_gradient_.emplace_back(data.combined_gradient[call]);
    }
  }

  [[nodiscard]] mhar::depth_router<Backend, T>& router() { return router_; }
  [[nodiscard]] typename Backend::context& context() { return context_; }
  [[nodiscard]] sweep_results& results() { return results_; }

  void begin_forward() { mhar::check(router_.begin_forward(context_)); }

  //! Produces the rows that the call is the first to read, and routes it.
  void route(int c)
  {
    while (router_.num_rows() < data_.rows_of(c)) { append_row(); }
    mhar::check(router_.route(context_, c, inputs(c), outputs(c)));
    save_outputs(c, results_);
    const auto heads = static_cast<std::size_t>(extent().num_positions * extent().num_heads);
    results_["lse"].push_back(array<real>::widened(router_.lse(c), heads));
  }

  //! The call's outputs once more; their arrays are poisoned first.
  sweep_results recompute(int c)
  {
    const auto call = static_cast<std::size_t>(c);
    y_[call] = array<real>{elements()};
    narrow_y_[call] = array<T>{elements()};
    combined_[call] = array<real>{elements()};
    mix_[call] = array<T>{elements()};
    wide_mix_[call] = array<real>{elements()};
    mhar::check(router_.recompute(context_, c, inputs(c), outputs(c)));
    sweep_results again;
    save_outputs(c, again);
    return again;
  }

  void begin_backward()
  {
    mhar::check(router_.begin_backward(context_));
    const auto calls = static_cast<std::size_t>(data_.num_calls());
    results_["private_gradient"].assign(calls, {});
    results_["partial_gradient"].assign(calls, {});
    results_["row_gradient"].assign(data_.rows.size(), {});
  }

  [[nodiscard]] mhar::call_upstream upstream(int c)
  {
    const auto call = static_cast<std::size_t>(c);
    const std::int64_t width = extent().width;
    mhar::call_upstream given;
    given.output_gradient = {dy_[call].data(), width};
    if (data_.options.combined_gradient) {
      given.combined_gradient = {combined_gradient_[call].data(), width};
    }
    if (data_.options.output_norm) { given.combined = {combined_[call].data(), width}; }
    if (choices_.mixes == mhar::mix_keeper::caller) { given.mix = mix_of(call); }
    return given;
  }

  void backward_call(int c)
  {
    const auto call = static_cast<std::size_t>(c);
    mhar::call_upstream given = upstream(c);
    const bool elsewhere = choices_.upstream == upstream_home::buffers ||
                           (choices_.upstream == upstream_home::mixed && c % 3 == 0);
    if (!elsewhere) {
      const mhar::matrix slot = router_.gradient_slot(c);
      access::upload(slot.data, data_.dy[call].data(), data_.dy[call].size() * sizeof(T));
      given.output_gradient = slot;
    }
    array<real> partial{elements()};
    if (data_.options.partial) { given.partial_gradient = {partial.data(), extent().width}; }
    mhar::check(router_.backward_call(context_, c, given));
    if (data_.options.partial) { results_["partial_gradient"][call] = partial.values(); }
    if (data_.options.schedule.has_private(c)) {
      array<real> gradient{elements()};
      mhar::check(
          router_.private_row_gradient(context_, c, inputs(c), {gradient.data(), extent().width}));
      results_["private_gradient"][call] = gradient.values();
    }
  }

  void row_gradient(int n)
  {
    auto& values = results_["row_gradient"][static_cast<std::size_t>(n)];
    if (choices_.narrow_gradients) { values = gradient_of<T>(n); }
    else {
      values = gradient_of<real>(n);
    }
  }

  //! Gradient arrays of all sites, six kinds each; null where frozen.
  using gradient_arrays = std::vector<std::unique_ptr<array<real>>>;

  //! Writes the sites' gradients into arrays of an earlier pass, or into new ones when there is
  //! none.
  void finish_into(gradient_arrays& arrays, mhar::update mode)
  {
    if (arrays.empty()) {
      for (const auto& site : data_.sites) {
        const auto& wanted = choices_.wanted;
        allocate(arrays, site.query, wanted.query);
        allocate(arrays, site.norm_weight, wanted.query);
        allocate(arrays, site.bias, wanted.bias);
        allocate(arrays, site.null_source, wanted.null_source);
        allocate(arrays, site.gate, wanted.gate);
        allocate(arrays, site.output_weight, wanted.output_norm_weight);
      }
    }
    const auto place = [&](std::size_t i) {
      const bool absent = arrays[i] == nullptr || arrays[i]->size() == 0;
      return absent ? mhar::array{} : mhar::array{arrays[i]->data(), mode};
    };
    std::vector<mhar::site_gradients> gradients;
    for (std::size_t i = 0; i < arrays.size(); i += 6) {
      gradients.push_back(
          {place(i), place(i + 1), place(i + 2), place(i + 3), place(i + 4), place(i + 5)});
    }
    mhar::check(router_.finish_backward(context_, gradients.data()));
    static constexpr const char* names[] = {"query",       "norm_weight", "bias",
                                            "null_source", "gate",        "output_weight"};
    for (const char* const name : names) { results_.erase(name); }
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (arrays[i] != nullptr) { results_[names[i % 6]].push_back(arrays[i]->values()); }
    }
  }

  void finish_backward()
  {
    gradient_arrays arrays;
    finish_into(arrays, mhar::update::store);
  }

  sweep_results& forward()
  {
    results_ = {};
    begin_forward();
    for (int c = 0; c < data_.num_calls(); ++c) { route(c); }
    return results_;
  }

  sweep_results& backward()
  {
    gradient_arrays arrays;
    return backward_into(arrays, mhar::update::store);
  }

  sweep_results& backward_into(gradient_arrays& arrays, mhar::update mode)
  {
    begin_backward();
    int row = data_.num_rows() - 1;
    for (int c = data_.num_calls() - 1; c >= 0; --c) {
      for (; row >= data_.rows_of(c); --row) { row_gradient(row); }
      backward_call(c);
    }
    for (; row >= 0; --row) { row_gradient(row); }
    finish_into(arrays, mode);
    return results_;
  }

  void append_row()
  {
    const int n = router_.num_rows();
    const std::vector<T>& values = data_.rows[static_cast<std::size_t>(n)];
    if (choices_.rows == mhar::row_home::listed) {
      listed_.emplace_back(values);
      mhar::check(router_.append(listed_.back().data()));
      return;
    }
    T* const place = router_.append();
    const std::int64_t width = extent().width;
    const std::int64_t stride = choices_.rows == mhar::row_home::strided ? position_stride_ : width;
    for (std::int64_t p = 0; p < extent().num_positions; ++p) {
      access::upload(place + p * stride, values.data() + p * width,
                     static_cast<std::size_t>(width) * sizeof(T));
    }
  }

  [[nodiscard]] mhar::call_inputs<T> inputs(int c) const
  {
    const auto call = static_cast<std::size_t>(c);
    mhar::call_inputs<T> given;
    if (data_.options.schedule.has_private(c)) { given.private_row = private_[call].data(); }
    if (data_.options.partial) { given.partial = {partial_[call].data(), extent().width}; }
    return given;
  }

  [[nodiscard]] mhar::route_outputs<T> outputs(int c) const
  {
    const auto call = static_cast<std::size_t>(c);
    const std::int64_t width = extent().width;
    mhar::route_outputs<T> asked;
    if (choices_.narrow_outputs) { asked.y = {narrow_y_[call].data(), width}; }
    else {
      asked.y = {y_[call].data(), width};
      asked.combined = {combined_[call].data(), width};
    }
    if (choices_.mixes == mhar::mix_keeper::caller) { asked.mix = mix_of(call); }
    return asked;
  }

private:
  [[nodiscard]] const mhar::shape& extent() const { return data_.options.extent; }

  template <class Element>
  [[nodiscard]] std::vector<double> gradient_of(int row)
  {
    array<Element> gradient{elements()};
    mhar::check(router_.row_gradient(context_, row, {gradient.data(), extent().width}));
    return gradient.values();
  }
  [[nodiscard]] std::int64_t elements() const { return extent().num_positions * extent().width; }

  [[nodiscard]] mhar::matrix mix_of(std::size_t call) const
  {
    const std::int64_t width = extent().width;
    return choices_.narrow_mixes ? mhar::matrix{mix_[call].data(), width}
                                 : mhar::matrix{wide_mix_[call].data(), width};
  }

  mhar::router_config configure()
  {
    mhar::router_config config;
    config.extent = extent();
    config.plan = choices_.plan;
    config.queries_per_site = data_.options.queries_per_site;
    for (const auto& site : data_.sites) {
      mhar::router_site described;
      data_.describe(site, described.parameters, described.stage,
                     [this](const std::vector<real>& values) -> const real* {
                       if (values.empty()) { return nullptr; }
                       parameters_.emplace_back(values);
                       return parameters_.back().data();
                     });
      config.sites.push_back(described);
    }
    config.call_state = choices_.call_state;
    config.row_state = choices_.row_state;
    config.rows = choices_.rows;
    config.gradients = choices_.gradients;
    config.mixes = choices_.mixes;
    config.recompute_calls = choices_.recompute_calls;
    config.wanted = choices_.wanted;
    return config;
  }

  void save_outputs(int c, sweep_results& results)
  {
    const auto call = static_cast<std::size_t>(c);
    results["y"].push_back(choices_.narrow_outputs ? narrow_y_[call].values() : y_[call].values());
    if (!choices_.narrow_outputs) { results["combined"].push_back(combined_[call].values()); }
    if (choices_.mixes == mhar::mix_keeper::caller) {
      results["mix"].push_back(choices_.narrow_mixes ? mix_[call].values()
                                                     : wide_mix_[call].values());
      return;
    }
    const mhar::const_matrix kept = router_.mix(c);
    const auto count = static_cast<std::size_t>(elements());
    results["mix"].push_back(kept.type == mhar::element_of<real>::value
                                 ? array<real>::widened(static_cast<const real*>(kept.data), count)
                                 : array<T>::widened(static_cast<const T*>(kept.data), count));
  }

  static void allocate(gradient_arrays& arrays, const std::vector<real>& values,
                       mhar::parameter_gradient wanted)
  {
    arrays.push_back(nullptr);
    if (wanted == mhar::parameter_gradient::frozen) { return; }
    arrays.back() = std::make_unique<array<real>>(static_cast<std::int64_t>(values.size()));
  }

  const sweep_case<T>& data_;
  run_choices choices_;
  std::vector<array<real>> parameters_;
  mhar::depth_router<Backend, T> router_;
  array<unsigned char> block_;
  typename Backend::context context_;
  std::unique_ptr<array<T>> buffer_;
  std::int64_t position_stride_ = 0;
  std::vector<array<T>> listed_;
  std::vector<array<real>> y_;
  std::vector<array<T>> narrow_y_;
  std::vector<array<real>> combined_;
  std::vector<array<T>> mix_;
  std::vector<array<real>> wide_mix_;
  std::vector<array<T>> private_;
  std::vector<array<T>> partial_;
  std::vector<array<T>> dy_;
  std::vector<array<T>> combined_gradient_;
  sweep_results results_;
};

}  // namespace mhar_test
