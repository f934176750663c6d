// SPDX-License-Identifier: Apache-2.0
//! device::route: a position's bits depend on its row, the parameters and the shape alone.
#include "device/device_route.cuh"
#include "device/stream.cuh"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>

using namespace mhar_test;

namespace {

struct shape_of_call
{
  std::int64_t width;
  int num_heads;
  int num_rows;
};

//! What a call makes of the mix.
struct ending
{
  mhar::output_norm norm;
  bool combines;  //!< with a partial, through a gate
};

//! The rows and parameters of a call with everything on, and y, mix and lse of some of its positions in any layout.
template <class T>
class bits_case
{
public:
  bits_case(const shape_of_call& shape, std::int64_t num_positions, random_inputs& random)
      : shape_{shape},
        num_positions_{num_positions},
        rows_{random.vector<T>(shape.num_rows * num_positions * shape.width)},
        query_{random.vector<float>(shape.width, 0.3)},
        norm_weight_{random.vector<float>(shape.width)},
        bias_{random.vector<float>(shape.num_rows + 1)},
        null_{random.vector<float>(shape.width)},
        output_weight_{random.vector<float>(shape.width)},
        partial_{random.vector<T>(num_positions * shape.width)}
  {
  }

  struct results
  {
    std::vector<T> y;
    std::vector<T> mix;
    std::vector<float> lse;
  };

  //! Positions [first, first + count); `offset` shifts every row by elements, `token_major` and `listed` choose the layout. Without
  //! `wants_mix` y and lse are all that is stored, and without `has_extras` there is neither a bias nor a null source.
  [[nodiscard]] results run(std::int64_t first, std::int64_t count, bool token_major, bool listed,
                            std::int64_t offset, const ending& end, bool wants_mix = true,
                            bool has_extras = true) const
  {
    const std::int64_t width = shape_.width;
    std::vector<T> placed(static_cast<std::size_t>(shape_.num_rows * count * width));
    for (int n = 0; n < shape_.num_rows; ++n) {
      for (std::int64_t p = 0; p < count; ++p) {
        const std::int64_t slot = token_major ? p * shape_.num_rows + n : n * count + p;
        std::memcpy(placed.data() + slot * width,
                    rows_.data() + (n * num_positions_ + first + p) * width,
                    static_cast<std::size_t>(width) * sizeof(T));
      }
    }
    const device_buffer<T> rows{placed, offset};
    const device_buffer<T> y{count * width, offset};
    const device_buffer<T> mix{count * width};
    const device_buffer<float> lse{count * shape_.num_heads};

    mhar::route_problem<T> problem;
    problem.extent = {count, width, shape_.num_heads, 0};
    problem.num_rows = shape_.num_rows;
    problem.rows = token_major ? mhar::token_major<T>(rows.data(), shape_.num_rows, width)
                               : mhar::source_major<T>(rows.data(), count, width);
    std::vector<const T*> list;
    std::vector<std::unique_ptr<device_buffer<T>>> apart;
    if (listed) {
      for (int n = 0; n < shape_.num_rows; ++n) {
        const auto from = placed.begin() + n * count * width;
        apart.push_back(
            std::make_unique<device_buffer<T>>(std::vector<T>(from, from + count * width), offset));
        list.push_back(apart.back()->data());
      }
      problem.rows = mhar::row_list<T>(list.data(), width);
    }
    const device_buffer<float> query{query_};
    const device_buffer<float> norm_weight{norm_weight_};
    const device_buffer<float> bias{bias_};
    const device_buffer<float> null{null_};
    const device_buffer<float> output_weight{output_weight_};
    problem.site.query = query.data();
    problem.site.norm_weight = norm_weight.data();
    if (has_extras) {
      problem.site.bias = bias.data();
      problem.site.null_source = null.data();
    }
    problem.stage.norm = end.norm;
    if (end.norm == mhar::output_norm::rms) { problem.stage.norm_weight = output_weight.data(); }
    const auto partials = partial_.begin() + first * width;
    const device_buffer<T> partial{std::vector<T>(partials, partials + count * width)};
    const device_buffer<float> gate{std::vector<float>{0.7f}};
    if (end.combines) {
      problem.stage.partial = {partial.data(), width};
      problem.stage.gate = gate.data();
    }
    problem.outputs.y = {y.data(), width};
    if (wants_mix) { problem.outputs.mix = {mix.data(), width}; }
    problem.outputs.lse = lse.data();
    run_on_device(problem, [](const auto& call, const mhar::device::context& context) {
      return mhar::device::route(call, context);
    });
    CHECK(y.guards_intact());
    CHECK(mix.guards_intact());
    CHECK(lse.guards_intact());
    return {y.download(), mix.download(), lse.download()};
  }

  void check_same(const results& all, std::int64_t first, std::int64_t count,
                  const results& some) const
  {
    CHECK(same(all.y, some.y, first, count, shape_.width));
    CHECK(same(all.mix, some.mix, first, count, shape_.width));
    CHECK(same(all.lse, some.lse, first, count, shape_.num_heads));
  }
  //! But for the mix.
  void check_same_y(const results& all, std::int64_t first, std::int64_t count,
                    const results& some) const
  {
    CHECK(same(all.y, some.y, first, count, shape_.width));
    CHECK(same(all.lse, some.lse, first, count, shape_.num_heads));
  }

private:
  template <class Value>
  static bool same(const std::vector<Value>& all, const std::vector<Value>& some,
                   std::int64_t first, std::int64_t count, std::int64_t size)
  {
    return std::memcmp(all.data() + first * size, some.data(),
                       static_cast<std::size_t>(count * size) * sizeof(Value)) == 0;
  }

  shape_of_call shape_;
  std::int64_t num_positions_;
  std::vector<T> rows_;
  std::vector<float> query_;
  std::vector<float> norm_weight_;
  std::vector<float> bias_;
  std::vector<float> null_;
  std::vector<float> output_weight_;
  std::vector<T> partial_;
};

template <class T>
void check_bits(const shape_of_call& shape, std::int64_t num_positions, std::uint64_t stream)
{
  random_inputs random{stream};
  const bits_case<T> data{shape, num_positions, random};
  CAPTURE(shape.width);
  CAPTURE(shape.num_heads);
  for (const ending& end :
       {ending{mhar::output_norm::none, false}, ending{mhar::output_norm::rms, false},
        ending{mhar::output_norm::none, true}}) {
    CAPTURE(end.combines);
    const auto all = data.run(0, num_positions, false, false, 0, end);
    data.check_same(all, 0, num_positions, data.run(0, num_positions, false, false, 0, end));
    data.check_same(all, 0, num_positions, data.run(0, num_positions, true, false, 0, end));
    data.check_same(all, 0, num_positions, data.run(0, num_positions, false, true, 0, end));
    data.check_same(all, 0, num_positions, data.run(0, num_positions, false, false, 1, end));
    data.check_same_y(all, 0, num_positions,
                      data.run(0, num_positions, false, false, 0, end, false));
    for (const std::int64_t count : {1, 2, 7, 16, 33, 120}) {
      if (count >= num_positions || (end.combines && count < 120)) { continue; }
      const std::int64_t first = random.integer(0, num_positions - count);
      CAPTURE(count);
      data.check_same(all, first, count, data.run(first, count, false, false, 0, end));
      data.check_same(all, first, count, data.run(first, count, true, false, 0, end));
      data.check_same_y(all, first, count, data.run(first, count, false, false, 0, end, false));
    }
  }
}

//! Of calls that have nothing unusual, which kernels of their own serve where positions are few.
template <class T>
void check_usual_bits(const shape_of_call& shape, std::int64_t num_positions, std::uint64_t stream)
{
  random_inputs random{stream};
  const bits_case<T> data{shape, num_positions, random};
  CAPTURE(shape.width);
  CAPTURE(shape.num_heads);
  const ending usual{mhar::output_norm::none, false};
  const auto all = data.run(0, num_positions, false, false, 0, usual, true, false);
  for (const std::int64_t count : {1, 2, 7, 16, 18, 29, 33, 66, 120, 132}) {
    const std::int64_t first = random.integer(0, num_positions - count);
    CAPTURE(count);
    data.check_same_y(all, first, count,
                      data.run(first, count, false, false, 0, usual, false, false));
    data.check_same_y(all, first, count,
                      data.run(first, count, true, false, 0, usual, false, false));
    data.check_same_y(all, first, count,
                      data.run(first, count, false, true, 0, usual, false, false));
  }
}

}  // namespace

TEST_CASE(
    "route: the same row gives the same bits, whatever the number of positions, layout and "
    "alignment")
{
  if (skip_without_gpu()) { return; }
  check_bits<mhar::bfloat16>({7168, 1, 9}, 300, 401);
  check_bits<mhar::bfloat16>({7168, 8, 5}, 1100, 402);
  check_bits<mhar::bfloat16>({4096, 8, 9}, 1100, 403);
  check_bits<mhar::bfloat16>({4096, 8, 6}, 600, 412);
  check_bits<mhar::bfloat16>({1280, 8, 13}, 1100, 404);
  check_bits<mhar::bfloat16>({1280, 8, 37}, 1100, 409);
  check_bits<mhar::bfloat16>({2048, 64, 4}, 300, 410);
  check_bits<mhar::bfloat16>({8192, 1, 3}, 300, 411);
  check_bits<mhar::float16>({512, 4, 6}, 5000, 405);
  check_bits<mhar::float16>({896, 1, 3}, 700, 406);
  check_bits<float>({1024, 8, 9}, 500, 407);
  check_bits<float>({7168, 1, 4}, 150, 408);
}

TEST_CASE("route: a usual call gives the same bits, whatever the number of positions and layout")
{
  if (skip_without_gpu()) { return; }
  check_usual_bits<mhar::bfloat16>({7168, 1, 9}, 1100, 421);
  check_usual_bits<mhar::bfloat16>({7168, 1, 1}, 140, 422);
  check_usual_bits<mhar::bfloat16>({7168, 1, 16}, 140, 423);
  check_usual_bits<mhar::bfloat16>({7168, 8, 9}, 140, 424);
  check_usual_bits<mhar::float16>({4096, 1, 9}, 1100, 425);
  check_usual_bits<mhar::float16>({2048, 1, 12}, 140, 426);
  check_usual_bits<mhar::bfloat16>({1280, 1, 13}, 140, 427);
  check_usual_bits<mhar::bfloat16>({512, 1, 5}, 140, 428);
  check_usual_bits<float>({3584, 1, 4}, 140, 429);
  check_usual_bits<float>({1024, 1, 9}, 140, 430);
  check_usual_bits<mhar::bfloat16>({7168, 8, 16}, 140, 431);
  check_usual_bits<mhar::bfloat16>({2048, 8, 5}, 140, 432);
  check_usual_bits<mhar::float16>({4096, 2, 9}, 140, 433);
  check_usual_bits<mhar::float16>({4096, 4, 1}, 140, 434);
  check_usual_bits<float>({1792, 4, 3}, 140, 435);
}
