// SPDX-License-Identifier: Apache-2.0
//! What a fuzzer does to a problem: it spoils a field, or moves an array somewhere else in the arena.
#pragma once

#include "fuzz/entropy.hpp"

#include <mhar/types/update.hpp>

#include <array>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace mhar_test {

//! Which fields a kind of problem has, an overload of spoil_problem says.
template <class Arena>
class spoiler
{
public:
  //! Arrays are moved to `starts`, in bytes from the arena's, or near them.
  spoiler(entropy& choices, const Arena& arena, std::vector<std::int64_t> starts)
      : choices_{choices}, arena_{arena}, starts_{std::move(starts)}
  {
  }

  template <class Problem>
  void operator()(Problem& problem)
  {
    spoil_problem(*this, problem);
  }

  [[nodiscard]] entropy& choices() noexcept { return choices_; }

  void spoil_extent(mhar::shape& extent)
  {
    switch (choices_.integer(0, 3)) {
      case 0: spoil_count(extent.num_positions); break;
      case 1: spoil_count(extent.width); break;
      case 2: spoil_index(extent.num_heads); break;
      default: spoil_count(extent.norm_width); break;
    }
  }
  template <class View>
  void spoil(View& view)
  {
    if constexpr (std::is_same_v<View, mhar::matrix> || std::is_same_v<View, mhar::const_matrix>) {
      if (choices_.once_in(3)) {
        spoil_stride(view.position_stride);
        return;
      }
    }
    if constexpr (std::is_same_v<View, mhar::matrix> || std::is_same_v<View, mhar::array>) {
      if (choices_.once_in(4)) {
        spoil_mode(view.mode);
        return;
      }
    }
    if (choices_.once_in(3)) { spoil_type(view.type); }
    else {
      move(view.data);
    }
  }
  template <class Pointer>
  void move(Pointer*& pointer)
  {
    if (choices_.once_in(6) || starts_.empty()) {
      pointer = nullptr;
      return;
    }
    const auto which = choices_.integer(0, static_cast<std::int64_t>(starts_.size()) - 1);
    std::int64_t at = starts_[static_cast<std::size_t>(which)];
    if (choices_.once_in(2)) { at += 8 * choices_.integer(-64, 64); }
    if (choices_.once_in(8)) { at += choices_.integer(-7, 7); }
    at = at < 0 ? 0 : at;
    pointer = static_cast<Pointer*>(static_cast<void*>(arena_.data() + at));
  }
  void spoil_type(mhar::element& type)
  {
    type = static_cast<mhar::element>(choices_.integer(0, 5));
  }
  void spoil_mode(mhar::update& mode) { mode = static_cast<mhar::update>(choices_.integer(0, 2)); }
  void spoil_count(std::int64_t& count)
  {
    static constexpr std::int64_t values[] = {0,
                                              -1,
                                              1,
                                              2,
                                              std::int64_t{1} << 30,
                                              (std::int64_t{1} << 30) + 1,
                                              std::int64_t{1} << 40,
                                              std::int64_t{1} << 62,
                                              (std::numeric_limits<std::int64_t>::max)(),
                                              (std::numeric_limits<std::int64_t>::min)()};
    count = choices_.once_in(2) ? moved(count, choices_.integer(-3, 3))
                                : values[choices_.integer(0, 9)];
  }
  void spoil_stride(std::int64_t& stride) { spoil_count(stride); }
  void spoil_index(int& index)
  {
    static constexpr int values[] = {
        0, -1, 1, 2, 3, (std::numeric_limits<int>::max)(), (std::numeric_limits<int>::min)()};
    index = choices_.once_in(2) ? static_cast<int>(moved(index, choices_.integer(-3, 3)))
                                : values[choices_.integer(0, 6)];
  }
  void spoil_number(double& number)
  {
    static constexpr double infinite = std::numeric_limits<double>::infinity();
    static const double values[] = {
        0, -1e-6, 1e-50, 1e50, 1e-6, infinite, -infinite, std::numeric_limits<double>::quiet_NaN()};
    number = values[choices_.integer(0, 7)];
  }

private:
  //! The sum, if it fits.
  static std::int64_t moved(std::int64_t value, std::int64_t by)
  {
    const std::int64_t most = std::int64_t{1} << 30;
    return value > most || value < -most ? value : value + by;
  }

  entropy& choices_;
  const Arena& arena_;
  std::vector<std::int64_t> starts_;
};

//! A field that forward and backward of one call have in common.
template <class Arena, class Problem>
void spoil_call(spoiler<Arena>& with, Problem& problem)
{
  mhar::site_parameters& site = problem.site;
  mhar::output_stage& stage = problem.stage;
  switch (with.choices().integer(0, 16)) {
    case 0:
    case 1:
    case 2:
    case 3: with.spoil_extent(problem.extent); break;
    case 4: with.spoil_index(problem.num_rows); break;
    case 5: with.spoil_stride(problem.rows.row_stride); break;
    case 6: with.spoil_stride(problem.rows.position_stride); break;
    case 7: with.move(problem.rows.base); break;
    case 8: with.spoil(site.query); break;
    case 9: with.spoil(with.choices().once_in(2) ? site.norm_weight : site.null_source); break;
    case 10: with.spoil(site.bias); break;
    case 11: with.spoil_number(with.choices().once_in(2) ? site.scale : site.eps); break;
    case 12: site.rounding = static_cast<mhar::key_rounding>(with.choices().integer(0, 5)); break;
    case 13: with.spoil(stage.partial); break;
    case 14: with.spoil(with.choices().once_in(2) ? stage.gate : stage.norm_weight); break;
    case 15: stage.norm = static_cast<mhar::output_norm>(with.choices().integer(0, 3)); break;
    default: with.spoil_number(stage.norm_eps); break;
  }
}

template <class Arena, class T>
void spoil_problem(spoiler<Arena>& with, mhar::route_problem<T>& problem)
{
  if (with.choices().once_in(2)) { spoil_call(with, problem); }
  else {
    mhar::route_outputs<T>& out = problem.outputs;
    switch (with.choices().integer(0, 5)) {
      case 0: with.spoil(out.y); break;
      case 1: with.spoil(out.combined); break;
      case 2: with.spoil(out.mix); break;
      case 3: with.move(out.lse); break;
      case 4: with.move(out.inverse_rms); break;
      default: with.move(out.weights); break;
    }
  }
}
template <class Arena, class T>
void spoil_problem(spoiler<Arena>& with, mhar::update_problem<T>& problem)
{
  switch (with.choices().integer(0, 4)) {
    case 0: with.spoil_index(problem.row); break;
    case 1: with.spoil(problem.delta); break;
    case 2: with.spoil(problem.sum); break;
    case 3: with.spoil(problem.copy); break;
    default: with(problem.call); break;
  }
}
template <class Arena, class T>
void spoil_problem(spoiler<Arena>& with, mhar::merge_problem<T>& problem)
{
  switch (with.choices().integer(0, 10)) {
    case 0: with.spoil_extent(problem.extent); break;
    case 1: with.spoil_index(problem.num_parts); break;
    case 2: with.spoil_stride(problem.parts.row_stride); break;
    case 3: with.spoil_stride(problem.parts.position_stride); break;
    case 4: with.move(problem.parts.base); break;
    case 5: with.spoil_stride(problem.part_lse_stride); break;
    case 6: with.move(problem.part_lse); break;
    case 7: with.move(problem.lse); break;
    default: with.spoil(problem.mix); break;
  }
}
template <class Arena, class T>
void spoil_problem(spoiler<Arena>& with, mhar::route_gradient_problem<T>& problem)
{
  if (with.choices().once_in(2)) {
    spoil_call(with, problem);
    return;
  }
  mhar::site_gradients& wanted = problem.gradients;
  const std::array<mhar::array*, 6> parameters{&wanted.query, &wanted.norm_weight,
                                               &wanted.bias,  &wanted.null_source,
                                               &wanted.gate,  &wanted.output_norm_weight};
  switch (with.choices().integer(0, 8)) {
    case 0: with.spoil(problem.output_gradient); break;
    case 1: with.spoil(problem.combined_gradient); break;
    case 2: with.spoil(problem.mix); break;
    case 3: with.spoil(problem.combined); break;
    case 4: with.move(problem.lse); break;
    case 5: with.move(problem.inverse_rms); break;
    case 6: with.spoil(problem.partial_gradient); break;
    case 7: with.spoil(*parameters[static_cast<std::size_t>(with.choices().integer(0, 5))]); break;
    default: {
      mhar::gradient_rows& rows = problem.row_gradients;
      switch (with.choices().integer(0, 4)) {
        case 0: with.spoil_stride(rows.row_stride); break;
        case 1: with.spoil_stride(rows.position_stride); break;
        case 2: with.spoil_type(rows.type); break;
        case 3: with.spoil_mode(rows.mode); break;
        default: with.move(rows.base); break;
      }
    }
  }
}

}  // namespace mhar_test
