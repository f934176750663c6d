// SPDX-License-Identifier: Apache-2.0
//! What a fuzzer has to know of a problem: every field it may spoil, and every piece of memory a verb may write.
#pragma once

#include "fuzz/arena.hpp"
#include "fuzz/entropy.hpp"

#include <mhar/types/update.hpp>
#include <mhar/types/validate.hpp>

#include <array>
#include <limits>
#include <vector>

namespace mhar_test {

//! A written matrix [count][width], `stride` elements between its rows; `pointer` is the problem's pointer to it.
struct written_piece
{
  void** pointer;
  unsigned char* at;
  mhar::element type;
  std::int64_t count;
  std::int64_t stride;
  std::int64_t width;

  [[nodiscard]] std::int64_t bytes() const
  {
    return count == 0 ? 0 : ((count - 1) * stride + width) * mhar::size_of(type);
  }
};

//! Collects what a problem's verb writes, and asks of everything it reads whether it is inside an arena.
class problem_memory
{
public:
  template <class T>
  explicit problem_memory(mhar::route_problem<T>& problem)
  {
    add(problem);
  }
  template <class T>
  explicit problem_memory(mhar::update_problem<T>& problem)
  {
    add(problem.call);
    write(problem.sum, problem.call.extent);
    write(problem.copy, problem.call.extent);
    read(problem.delta, problem.call.extent);
  }
  template <class T>
  explicit problem_memory(mhar::merge_problem<T>& problem)
  {
    constexpr mhar::element statistics = mhar::element_of<mhar::accumulate_t<T>>::value;
    const std::int64_t sums = problem.extent.num_positions * problem.extent.num_heads;
    for (int i = 0; i < problem.num_parts; ++i) {
      read(mhar::const_matrix{problem.parts.row(i), problem.parts.position_stride}, problem.extent);
    }
    const std::int64_t stride = problem.num_parts == 1 ? sums : problem.part_lse_stride;
    reads_.push_back({problem.part_lse, statistics, problem.num_parts, stride, sums});
    write(problem.mix, problem.extent);
    write(reinterpret_cast<void**>(&problem.lse), statistics, 1, 0, sums);
  }
  //! Row gradients must be listed.
  template <class T>
  explicit problem_memory(mhar::route_gradient_problem<T>& problem)
  {
    constexpr mhar::element statistics = mhar::element_of<mhar::accumulate_t<T>>::value;
    const mhar::shape& extent = problem.extent;
    mhar::site_gradients& wanted = problem.gradients;
    add_call(problem);
    write(wanted.query, extent.width);
    write(wanted.norm_weight, extent.width);
    write(wanted.bias, sources_);
    write(wanted.null_source, extent.width);
    write(wanted.gate, 1);
    write(wanted.output_norm_weight, extent.width);
    write(problem.partial_gradient, extent);
    const mhar::gradient_rows& rows = problem.row_gradients;
    for (int n = 0; rows.list != nullptr && n < problem.num_rows; ++n) {
      write(const_cast<void**>(rows.list) + n, rows.type, extent.num_positions,
            rows.position_stride, extent.width);
    }
    // Named: nvcc rewrites a loop over such a list into what its host compiler does not take.
    const mhar::const_matrix given[] = {problem.output_gradient, problem.combined_gradient,
                                        problem.mix, problem.combined};
    for (const mhar::const_matrix& view : given) { read(view, extent); }
    reads_.push_back(
        {problem.lse, statistics, extent.num_positions, extent.num_heads, extent.num_heads});
    reads_.push_back({problem.inverse_rms, statistics, problem.num_rows, extent.num_positions,
                      extent.num_positions});
  }

  [[nodiscard]] const std::vector<written_piece>& written() const noexcept { return written_; }
  template <class Arena>
  [[nodiscard]] bool inside(const Arena& arena) const
  {
    for (const read_piece& piece : reads_) {
      if (!arena.holds(piece.at, piece.type, piece.count, piece.stride, piece.width)) {
        return false;
      }
    }
    for (const written_piece& piece : written_) {
      if (!arena.holds(piece.at, piece.type, piece.count, piece.stride, piece.width)) {
        return false;
      }
    }
    return true;
  }

private:
  struct read_piece
  {
    const void* at;
    mhar::element type;
    std::int64_t count;
    std::int64_t stride;
    std::int64_t width;
  };

  template <class T>
  void add(mhar::route_problem<T>& problem)
  {
    constexpr mhar::element statistics = mhar::element_of<mhar::accumulate_t<T>>::value;
    const mhar::shape& extent = problem.extent;
    mhar::route_outputs<T>& out = problem.outputs;
    add_call(problem);
    write(out.y, extent);
    write(out.combined, extent);
    write(out.mix, extent);
    const std::int64_t sums = extent.num_positions * extent.num_heads;
    write(reinterpret_cast<void**>(&out.lse), statistics, 1, 0, sums);
    write(reinterpret_cast<void**>(&out.inverse_rms), statistics, 1, 0,
          extent.num_positions * problem.num_rows);
    write(reinterpret_cast<void**>(&out.weights), statistics, 1, 0, sums * sources_);
  }
  template <class Problem>
  void add_call(const Problem& problem)
  {
    const mhar::shape& extent = problem.extent;
    const mhar::site_parameters& site = problem.site;
    sources_ = problem.num_rows + (site.null_source ? 1 : 0);
    for (int n = 0; n < problem.num_rows; ++n) {
      read(mhar::const_matrix{problem.rows.row(n), problem.rows.position_stride}, extent);
    }
    const mhar::const_array parameters[] = {site.query, site.norm_weight, site.null_source,
                                            problem.stage.norm_weight};
    for (const mhar::const_array& array : parameters) { read(array, extent.width); }
    read(site.bias, sources_);
    read(problem.stage.gate, 1);
    read(problem.stage.partial, extent);
  }
  void read(const mhar::const_matrix& view, const mhar::shape& extent)
  {
    reads_.push_back(
        {view.data, view.type, extent.num_positions, view.position_stride, extent.width});
  }
  void read(const mhar::const_array& view, std::int64_t size)
  {
    reads_.push_back({view.data, view.type, 1, 0, size});
  }
  void write(mhar::matrix& view, const mhar::shape& extent)
  {
    write(&view.data, view.type, extent.num_positions, view.position_stride, extent.width);
  }
  void write(mhar::array& view, std::int64_t size) { write(&view.data, view.type, 1, 0, size); }
  void write(void** pointer, mhar::element type, std::int64_t count, std::int64_t stride,
             std::int64_t width)
  {
    if (*pointer == nullptr) { return; }
    written_.push_back(
        {pointer, static_cast<unsigned char*>(*pointer), type, count, stride, width});
  }

  std::int64_t sources_ = 0;
  std::vector<read_piece> reads_;
  std::vector<written_piece> written_;
};

//! Spoils a field of a problem, or moves an array somewhere else in the arena.
template <class Arena>
class spoiler
{
public:
  spoiler(entropy& choices, const Arena& arena) : choices_{choices}, arena_{arena} {}

  template <class T>
  void operator()(mhar::route_problem<T>& problem)
  {
    if (choices_.once_in(2)) { spoil_call(problem); }
    else {
      mhar::route_outputs<T>& out = problem.outputs;
      switch (choices_.integer(0, 5)) {
        case 0: spoil(out.y); break;
        case 1: spoil(out.combined); break;
        case 2: spoil(out.mix); break;
        case 3: move(out.lse); break;
        case 4: move(out.inverse_rms); break;
        default: move(out.weights); break;
      }
    }
  }
  template <class T>
  void operator()(mhar::update_problem<T>& problem)
  {
    switch (choices_.integer(0, 4)) {
      case 0: spoil_index(problem.row); break;
      case 1: spoil(problem.delta); break;
      case 2: spoil(problem.sum); break;
      case 3: spoil(problem.copy); break;
      default: (*this)(problem.call); break;
    }
  }
  template <class T>
  void operator()(mhar::merge_problem<T>& problem)
  {
    switch (choices_.integer(0, 10)) {
      case 0: spoil_extent(problem.extent); break;
      case 1: spoil_index(problem.num_parts); break;
      case 2: spoil_stride(problem.parts.row_stride); break;
      case 3: spoil_stride(problem.parts.position_stride); break;
      case 4: move(problem.parts.base); break;
      case 5: spoil_stride(problem.part_lse_stride); break;
      case 6: move(problem.part_lse); break;
      case 7: move(problem.lse); break;
      default: spoil(problem.mix); break;
    }
  }
  template <class T>
  void operator()(mhar::route_gradient_problem<T>& problem)
  {
    if (choices_.once_in(2)) {
      spoil_call(problem);
      return;
    }
    mhar::site_gradients& wanted = problem.gradients;
    const std::array<mhar::array*, 6> parameters{&wanted.query, &wanted.norm_weight,
                                                 &wanted.bias,  &wanted.null_source,
                                                 &wanted.gate,  &wanted.output_norm_weight};
    switch (choices_.integer(0, 8)) {
      case 0: spoil(problem.output_gradient); break;
      case 1: spoil(problem.combined_gradient); break;
      case 2: spoil(problem.mix); break;
      case 3: spoil(problem.combined); break;
      case 4: move(problem.lse); break;
      case 5: move(problem.inverse_rms); break;
      case 6: spoil(problem.partial_gradient); break;
      case 7: spoil(*parameters[static_cast<std::size_t>(choices_.integer(0, 5))]); break;
      default: {
        mhar::gradient_rows& rows = problem.row_gradients;
        switch (choices_.integer(0, 4)) {
          case 0: spoil_stride(rows.row_stride); break;
          case 1: spoil_stride(rows.position_stride); break;
          case 2: spoil_type(rows.type); break;
          case 3: spoil_mode(rows.mode); break;
          default: move(rows.base); break;
        }
      }
    }
  }

private:
  void spoil_extent(mhar::shape& extent)
  {
    switch (choices_.integer(0, 3)) {
      case 0: spoil_count(extent.num_positions); break;
      case 1: spoil_count(extent.width); break;
      case 2: spoil_index(extent.num_heads); break;
      default: spoil_count(extent.norm_width); break;
    }
  }
  template <class Problem>
  void spoil_call(Problem& problem)
  {
    mhar::site_parameters& site = problem.site;
    mhar::output_stage& stage = problem.stage;
    switch (choices_.integer(0, 16)) {
      case 0:
      case 1:
      case 2:
      case 3: spoil_extent(problem.extent); break;
      case 4: spoil_index(problem.num_rows); break;
      case 5: spoil_stride(problem.rows.row_stride); break;
      case 6: spoil_stride(problem.rows.position_stride); break;
      case 7: move(problem.rows.base); break;
      case 8: spoil(site.query); break;
      case 9: spoil(choices_.once_in(2) ? site.norm_weight : site.null_source); break;
      case 10: spoil(site.bias); break;
      case 11: spoil_number(choices_.once_in(2) ? site.scale : site.eps); break;
      case 12: site.rounding = static_cast<mhar::key_rounding>(choices_.integer(0, 5)); break;
      case 13: spoil(stage.partial); break;
      case 14: spoil(choices_.once_in(2) ? stage.gate : stage.norm_weight); break;
      case 15: stage.norm = static_cast<mhar::output_norm>(choices_.integer(0, 3)); break;
      default: spoil_number(stage.norm_eps); break;
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
    if (choices_.once_in(6)) {
      pointer = nullptr;
      return;
    }
    const auto& starts = arena_.starts();
    const auto which = choices_.integer(0, static_cast<std::int64_t>(starts.size()) - 1);
    std::int64_t at = starts[static_cast<std::size_t>(which)];
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
  //! The sum, if it fits.
  static std::int64_t moved(std::int64_t value, std::int64_t by)
  {
    const std::int64_t most = std::int64_t{1} << 30;
    return value > most || value < -most ? value : value + by;
  }
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

  entropy& choices_;
  const Arena& arena_;
};

}  // namespace mhar_test
