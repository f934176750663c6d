// SPDX-License-Identifier: Apache-2.0
//! The fuzzer's merge of partial results: a valid one, in place or not, gives the reference's; a spoilt one is judged as a spoilt
//! call.
#pragma once

#include "fuzz/spoilt.hpp"
#include "support/call_case.hpp"

#include <limits>
#include <vector>

namespace mhar_test {

//! Random parts and where their merge goes; with `place`, over that part.
template <class T>
class merge_case
{
public:
  using accumulate = mhar::accumulate_t<T>;

  merge_case(entropy& choices, std::int64_t size)
      : random_{random_inputs::seeded(choices.bits())},
        num_parts_{static_cast<int>(choices.integer(1, 6))},
        listed_{choices.once_in(2)}
  {
    extent_.num_heads = static_cast<int>(choices.integer(1, 4));
    extent_.width = extent_.num_heads * choices.integer(1, size / 12);
    extent_.num_positions = choices.integer(1, 5);
    const std::int64_t gap = choices.integer(0, 5);
    const std::int64_t offset = choices.integer(0, 7);
    placement where = matrix_of(extent_.num_positions, extent_.width, gap);
    const std::int64_t apart = extent_.num_positions * where.position_stride;
    for (int i = 1; i < num_parts_; ++i) { where.row_start.push_back(i * apart); }
    parts_ = tensor{mhar::element_of<T>::value, where, offset};
    placement sums = flat(extent_.num_positions * extent_.num_heads);
    lse_stride_ = sums.width + gap;
    for (int i = 1; i < num_parts_; ++i) { sums.row_start.push_back(i * lse_stride_); }
    part_lse_ = tensor{mhar::element_of<accumulate>::value, sums, offset};
    parts_.for_each([&](auto... at) { parts_.set(at..., random_.normal()); });
    part_lse_.for_each([&](auto... at) { part_lse_.set(at..., random_.normal(3)); });
    const auto type = static_cast<mhar::element>(choices.integer(0, 3));
    if (choices.once_in(3)) { place_ = static_cast<int>(choices.integer(0, num_parts_ - 1)); }
    else {
      mix_ = tensor{type, matrix_of(extent_.num_positions, extent_.width, gap), offset};
      lse_ = tensor{mhar::element_of<accumulate>::value, flat(sums.width), offset};
    }
  }

  //! Parts that have no weight and any mix, and sums that are not finite.
  void put_special_values(entropy& choices)
  {
    static constexpr double infinity = std::numeric_limits<double>::infinity();
    static constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
    for (int i = 0; i < num_parts_; ++i) {
      if (!choices.once_in(3)) { continue; }
      const double lse = choices.once_in(3) ? nothing : -infinity;
      part_lse_.for_each([&](std::int64_t n, std::int64_t p, std::int64_t k) {
        if (n == i) { part_lse_.set(n, p, k, lse); }
      });
      const double mix = choices.once_in(2) ? nothing : infinity;
      parts_.for_each([&](std::int64_t n, std::int64_t p, std::int64_t k) {
        if (n == i) { parts_.set(n, p, k, mix); }
      });
    }
  }

  template <class Memory>
  [[nodiscard]] bound<mhar::merge_problem<T>, T> bind(Memory&& at)
  {
    auto b = bind_parts(at);
    if (place_ >= 0) {
      b.problem.mix = {const_cast<T*>(b.problem.parts.row(place_)), parts_.where().position_stride};
      b.problem.lse = const_cast<accumulate*>(b.problem.part_lse) + place_ * lse_stride_;
      return b;
    }
    b.problem.mix = {at(mix_), mix_.type(), mix_.where().position_stride};
    b.problem.lse = static_cast<accumulate*>(at(lse_));
    return b;
  }

  //! Runs `serve` on the problem, whose arrays `at` gives, and compares with the reference once they are on the host.
  template <class Memory, class Serve>
  [[nodiscard]] comparison check(Memory&& at, const Serve& serve)
  {
    tensor mix{mhar::element::float64, matrix_of(extent_.num_positions, extent_.width)};
    tensor lse{mhar::element_of<accumulate>::value, flat(part_lse_.where().width)};
    auto expected = bind_parts(host_memory{});
    expected.problem.mix = {mix.data(), mix.type(), extent_.width};
    expected.problem.lse = static_cast<accumulate*>(lse.data());
    mhar::reference::merge(expected.problem);

    const auto bound = bind(at);
    serve(bound.problem);
    tensor& got_mix = place_ >= 0 ? parts_ : mix_;
    tensor& got_lse = place_ >= 0 ? part_lse_ : lse_;
    const std::int64_t row = place_ >= 0 ? place_ : 0;
    comparison all{true, "merge"};
    compare(all, "mix", got_mix, row, mix);
    compare(all, "lse", got_lse, row, lse);
    for (tensor* const array : {&parts_, &part_lse_, &mix_, &lse_}) {
      if (!array->surroundings_intact()) {
        all = {false, all.text + ": was written outside its elements"};
      }
    }
    return all;
  }

private:
  static void compare(comparison& all, const char* name, tensor& actual, std::int64_t row,
                      tensor& expected)
  {
    const tolerance allowed =
        tolerance_of(std::min(actual.type(), mhar::element_of<accumulate>::value));
    const double rounding = tolerance_of<accumulate>().absolute * 10;
    expected.for_each([&](std::int64_t n, std::int64_t p, std::int64_t k) {
      const double got = actual.get(row, p, k);
      const double wanted = expected.get(n, p, k);
      if (close(got, wanted, {allowed.relative, allowed.absolute + rounding})) { return; }
      all.ok = false;
      if (all.text.size() > 200) { return; }  // a few will do
      all.text += "\n  " + std::string{name} + " is " + std::to_string(got) + ", expected " +
                  std::to_string(wanted);
    });
  }

  template <class Memory>
  [[nodiscard]] bound<mhar::merge_problem<T>, T> bind_parts(Memory&& at)
  {
    bound<mhar::merge_problem<T>, T> b;
    const placement& where = parts_.where();
    const auto* const first = static_cast<const T*>(at(parts_));
    if (listed_) {
      for (const std::int64_t start : where.row_start) { b.rows.push_back(first + start); }
      b.problem.parts.list = b.rows.data();
    }
    else {
      b.problem.parts.base = first;
      b.problem.parts.row_stride = num_parts_ > 1 ? where.row_start[1] : 0;
    }
    b.problem.extent = extent_;
    b.problem.num_parts = num_parts_;
    b.problem.parts.position_stride = where.position_stride;
    b.problem.part_lse = static_cast<const accumulate*>(at(part_lse_));
    b.problem.part_lse_stride = lse_stride_;
    return b;
  }

  random_inputs random_;
  mhar::shape extent_;
  int num_parts_;
  bool listed_;
  int place_ = -1;
  std::int64_t lse_stride_ = 0;
  tensor parts_;
  tensor part_lse_;
  tensor mix_;
  tensor lse_;
};

template <class T, class Backend>
void fuzz_merge(entropy& choices, Backend& backend)
{
  merge_case<T> data{choices, 200};
  if (choices.once_in(2)) {
    fuzz_spoilt_call<T, mhar::merge_problem<T>>(choices, backend,
                                                [&](auto& arena) { return data.bind(arena); });
    return;
  }
  if (choices.once_in(2)) { data.put_special_values(choices); }
  const comparison outcome = backend.merge(data);
  fuzz_require(outcome.ok, outcome.text);
}

}  // namespace mhar_test
