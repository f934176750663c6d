// SPDX-License-Identifier: Apache-2.0
//! What a fuzzer has to know of a problem's memory: every piece that a verb reads, and every piece that it may write.
#pragma once

#include "fuzz/arena.hpp"

#include <mhar/types/update.hpp>

#include <vector>

namespace mhar_test {

//! A matrix [count][width], `stride` elements between its rows, of which rows [first, last) are written; `pointer` is the problem's
//! pointer to it.
struct written_piece
{
  void** pointer;
  unsigned char* at;
  mhar::element type;
  std::int64_t count;
  std::int64_t stride;
  std::int64_t width;
  std::int64_t first;
  std::int64_t last;

  [[nodiscard]] std::int64_t bytes() const
  {
    return count == 0 ? 0 : ((count - 1) * stride + width) * mhar::size_of(type);
  }
};

//! Collects what a problem's verb writes, and asks of everything it reads whether it is inside an arena. What a kind of problem
//! consists of, an overload of add_problem says.
class problem_memory
{
public:
  template <class Problem>
  explicit problem_memory(Problem& problem)
  {
    add_problem(*this, problem);
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

  //! Where the arrays of the problem start, in bytes from the arena's start.
  template <class Arena>
  [[nodiscard]] std::vector<std::int64_t> starts(const Arena& arena) const
  {
    std::vector<std::int64_t> all;
    const auto add = [&](const void* at) {
      if (at != nullptr) { all.push_back(static_cast<const unsigned char*>(at) - arena.data()); }
    };
    for (const read_piece& piece : reads_) { add(piece.at); }
    for (const written_piece& piece : written_) { add(piece.at); }
    return all;
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
  //! Rows [first, first + count) of a list or of strided rows.
  template <class T>
  void read_rows(const mhar::const_rows<T>& rows, int first, int count, const mhar::shape& extent)
  {
    if (extent.num_positions == 0) { return; }  // strides mean nothing then
    for (int n = first; n < first + count; ++n) {
      read(mhar::const_matrix{rows.row(n), rows.position_stride}, extent);
    }
  }
  //! `count` blocks of `size` values one after the other.
  template <class Value>
  void read_values(const Value* data, std::int64_t count, std::int64_t size)
  {
    reads_.push_back({data, mhar::element_of<Value>::value, count, size, size});
  }
  void write(mhar::matrix& view, const mhar::shape& extent)
  {
    write(&view.data, view.type, extent.num_positions, view.position_stride, extent.width);
  }
  void write(mhar::array& view, std::int64_t size) { write(&view.data, view.type, 1, 0, size); }
  template <class Value>
  void write_values(Value*& data, std::int64_t size)
  {
    write(reinterpret_cast<void**>(&data), mhar::element_of<Value>::value, 1, 0, size);
  }
  void write(void** pointer, mhar::element type, std::int64_t count, std::int64_t stride,
             std::int64_t width)
  {
    write_some(pointer, type, count, stride, width, 0, count);
  }
  //! Rows [first, last) of it are written, the others at most read.
  void write_some(void** pointer, mhar::element type, std::int64_t count, std::int64_t stride,
                  std::int64_t width, std::int64_t first, std::int64_t last)
  {
    if (*pointer == nullptr || count <= 0) { return; }
    written_.push_back(
        {pointer, static_cast<unsigned char*>(*pointer), type, count, stride, width, first, last});
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

  std::vector<read_piece> reads_;
  std::vector<written_piece> written_;
};

//! What forward and backward of one call read; how many sources there are.
template <class Problem>
std::int64_t add_call(problem_memory& memory, const Problem& problem)
{
  const mhar::shape& extent = problem.extent;
  const mhar::site_parameters& site = problem.site;
  const std::int64_t num_sources = problem.num_rows + (site.null_source ? 1 : 0);
  memory.read_rows(problem.rows, 0, problem.num_rows, extent);
  const mhar::const_array parameters[] = {site.query, site.norm_weight, site.null_source,
                                          problem.stage.norm_weight};
  for (const mhar::const_array& array : parameters) { memory.read(array, extent.width); }
  memory.read(site.bias, num_sources);
  memory.read(problem.stage.gate, 1);
  memory.read(problem.stage.partial, extent);
  return num_sources;
}

template <class T>
void add_problem(problem_memory& memory, mhar::route_problem<T>& problem)
{
  const mhar::shape& extent = problem.extent;
  mhar::route_outputs<T>& out = problem.outputs;
  const std::int64_t num_sources = add_call(memory, problem);
  const std::int64_t sums = extent.num_positions * extent.num_heads;
  memory.write(out.y, extent);
  memory.write(out.combined, extent);
  memory.write(out.mix, extent);
  memory.write_values(out.lse, sums);
  memory.write_values(out.inverse_rms, extent.num_positions * problem.num_rows);
  memory.write_values(out.weights, sums * num_sources);
}
template <class T>
void add_problem(problem_memory& memory, mhar::update_problem<T>& problem)
{
  add_problem(memory, problem.call);
  memory.write(problem.sum, problem.call.extent);
  memory.write(problem.copy, problem.call.extent);
  memory.read(problem.delta, problem.call.extent);
}
//! Row gradients must be listed.
template <class T>
void add_problem(problem_memory& memory, mhar::route_gradient_problem<T>& problem)
{
  const mhar::shape& extent = problem.extent;
  mhar::site_gradients& wanted = problem.gradients;
  const std::int64_t num_sources = add_call(memory, problem);
  memory.write(wanted.query, extent.width);
  memory.write(wanted.norm_weight, extent.width);
  memory.write(wanted.bias, num_sources);
  memory.write(wanted.null_source, extent.width);
  memory.write(wanted.gate, 1);
  memory.write(wanted.output_norm_weight, extent.width);
  memory.write(problem.partial_gradient, extent);
  const mhar::gradient_rows& rows = problem.row_gradients;
  for (int n = 0; rows.list != nullptr && n < problem.num_rows; ++n) {
    memory.write(const_cast<void**>(rows.list) + n, rows.type, extent.num_positions,
                 rows.position_stride, extent.width);
  }
  // Named: nvcc rewrites a loop over such a list into what its host compiler does not take.
  const mhar::const_matrix given[] = {problem.output_gradient, problem.combined_gradient,
                                      problem.mix, problem.combined};
  for (const mhar::const_matrix& view : given) { memory.read(view, extent); }
  memory.read_values(problem.lse, extent.num_positions, extent.num_heads);
  memory.read_values(problem.inverse_rms, problem.num_rows, extent.num_positions);
}
template <class T>
void add_problem(problem_memory& memory, mhar::merge_problem<T>& problem)
{
  const mhar::shape& extent = problem.extent;
  const std::int64_t sums = extent.num_positions * extent.num_heads;
  memory.read_rows(problem.parts, 0, problem.num_parts, extent);
  for (int i = 0; i < problem.num_parts; ++i) {
    memory.read_values(problem.part_lse + (i == 0 ? 0 : i * problem.part_lse_stride), 1, sums);
  }
  memory.write(problem.mix, extent);
  memory.write_values(problem.lse, sums);
}

}  // namespace mhar_test
