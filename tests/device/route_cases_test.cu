// SPDX-License-Identifier: Apache-2.0
//! device::route: numeric extremes, production forms, capture, and what must be refused.
#include "device/device_route.cuh"
#include "device/stream.cuh"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace mhar_test;

namespace {

const auto route_verb = [](const auto& problem, const mhar::device::context& context) {
  return mhar::device::route(problem, context);
};

//! A call over contiguous source-major rows with a query and y.
template <class T>
struct simple_call
{
  device_buffer<T> rows;
  device_buffer<float> query;
  device_buffer<T> y;
  mhar::route_problem<T> problem;

  simple_call(const mhar::shape& extent, int num_rows, const std::vector<T>& values,
              const std::vector<float>& q)
      : rows{values}, query{q}, y{extent.num_positions * extent.width}
  {
    problem.extent = extent;
    problem.num_rows = num_rows;
    problem.rows = mhar::source_major<T>(rows.data(), extent.num_positions, extent.width);
    problem.site.query = query.data();
    problem.outputs.y = {y.data(), extent.width};
  }
};

template <class T>
std::vector<T> constant(std::int64_t count, double value)
{
  return std::vector<T>(static_cast<std::size_t>(count), mhar::round_to<T>(value));
}

template <class T>
bool all_equal(const std::vector<T>& values, double expected, double relative)
{
  for (const T value : values) {
    if (!(std::abs(mhar::widen<double>(value) - expected) <= relative * std::abs(expected))) {
      return false;
    }
  }
  return true;
}

template <class T>
void check_large_rows(double size, std::int64_t width, std::int64_t num_positions)
{
  CAPTURE(size);
  CAPTURE(width);
  simple_call<T> call{{num_positions, width, 1, 0},
                      1,
                      constant<T>(num_positions * width, size),
                      constant<float>(width, 0)};
  call.problem.stage.norm = mhar::output_norm::rms;
  run_on_device(call.problem, route_verb);
  CHECK(all_equal(call.y.download(), 1, 4e-3));
}

}  // namespace

TEST_CASE("route: sums of squares do not overflow")
{
  if (skip_without_gpu()) { return; }
  for (const std::int64_t num_positions : {1, 100, 200}) {
    check_large_rows<mhar::float16>(300, 512, num_positions);
    check_large_rows<mhar::float16>(65504, 7168, num_positions);
    check_large_rows<mhar::bfloat16>(1e15, 7168, num_positions);
    check_large_rows<mhar::bfloat16>(1e19, 7168, num_positions);
    check_large_rows<mhar::bfloat16>(1e37, 1280, num_positions);
    check_large_rows<mhar::bfloat16>(1e37, 1280, 6 * num_positions);
    check_large_rows<float>(1e19, 512, num_positions);
    check_large_rows<float>(1e19, 513, num_positions);
  }
  // A key of such a row: logits of a head are its share of the query, whatever a row's size.
  for (const int num_heads : {1, 2}) {
    simple_call<float> call{
        {1, 512, num_heads, 0}, 2, constant<float>(1024, 3e18), constant<float>(512, 1.0 / 512)};
    const device_buffer<float> lse{num_heads};
    call.problem.outputs.lse = lse.data();
    run_on_device(call.problem, route_verb);
    for (const float value : lse.download()) {
      CHECK(value == doctest::Approx(1.0 / num_heads + std::log(2.0)).epsilon(1e-5));
    }
  }
}

TEST_CASE("route: logits of -inf have no weight, and all of them give 0")
{
  if (skip_without_gpu()) { return; }
  for (const int num_rows : {5, 9, 33}) {
    for (const int finite : {0, 2, num_rows - 1}) {
      CAPTURE(num_rows);
      CAPTURE(finite);
      std::vector<float> rows = constant<float>(num_rows * 16, 1);
      for (int i = 0; i < 16; ++i) {
        rows[static_cast<std::size_t>(finite * 16 + i)] = i >= 8 ? 2.0f : i % 4 == 0 ? 0.0f : 7.0f;
      }
      std::vector<float> query(16, 0.0f);
      query[0] = -3e38f;
      query[4] = -3e38f;
      simple_call<float> call{{1, 16, 2, 0}, num_rows, rows, query};
      run_on_device(call.problem, route_verb);
      const std::vector<float> y = call.y.download();
      for (int i = 0; i < 8; ++i) {
        CHECK(y[static_cast<std::size_t>(i)] == (i % 4 == 0 ? 0.0f : 7.0f));
      }
      for (int i = 8; i < 16; ++i) {
        CHECK(y[static_cast<std::size_t>(i)] == doctest::Approx(1 + 1.0 / num_rows).epsilon(1e-6));
      }
    }
  }
  std::vector<float> query(16, 0.0f);
  query[0] = -3e38f;
  query[1] = -3e38f;
  simple_call<float> call{{1, 16, 1, 0}, 3, constant<float>(48, 1), query};
  const device_buffer<float> lse{1};
  const device_buffer<float> weights{3};
  call.problem.outputs.lse = lse.data();
  call.problem.outputs.weights = weights.data();
  run_on_device(call.problem, route_verb);
  CHECK(lse.download()[0] == -std::numeric_limits<float>::infinity());
  CHECK(all_equal(call.y.download(), 0, 0));
  CHECK(all_equal(weights.download(), 0, 0));
}

TEST_CASE("route: a closed gate passes the partial's bits")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{501};
  for (const std::int64_t width : {63, 1280, 7168}) {
    for (const std::int64_t num_positions : {1, 200, 1100}) {
      simple_call<mhar::bfloat16> call{{num_positions, width, 1, 0},
                                       3,
                                       random.vector<mhar::bfloat16>(3 * num_positions * width),
                                       random.vector<float>(width)};
      std::vector<mhar::bfloat16> bits(static_cast<std::size_t>(num_positions * width));
      for (auto& value : bits) {
        value.bits = static_cast<std::uint16_t>(random.integer(0, 0xffff));
      }
      const device_buffer<mhar::bfloat16> partial{bits};
      const device_buffer<float> gate{std::vector<float>{0.0f}};
      call.problem.stage.partial = {partial.data(), width};
      call.problem.stage.gate = gate.data();
      run_on_device(call.problem, route_verb);
      const auto y = call.y.download();
      CHECK(std::memcmp(y.data(), bits.data(), bits.size() * 2) == 0);
    }
  }
}

TEST_CASE("route: prefix += delta is rounded, routed and written")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{502};
  using T = mhar::bfloat16;
  for (const std::int64_t width : {100, 1280, 7168}) {
    for (const std::int64_t num_positions : {1, 3, 300}) {
      CAPTURE(width);
      CAPTURE(num_positions);
      constexpr int num_rows = 6;
      const std::int64_t size = num_positions * width;
      const std::vector<T> values = random.vector<T>(num_rows * size);
      const std::vector<T> delta = random.vector<T>(size);
      const std::vector<float> query = random.vector<float>(width, 0.1);
      std::vector<T> updated(values.end() - size, values.end());
      for (std::size_t i = 0; i < updated.size(); ++i) {
        updated[i] = mhar::round_to<T>(mhar::to_float(updated[i]) + mhar::to_float(delta[i]));
      }
      std::vector<T> after = values;
      std::copy(updated.begin(), updated.end(), after.end() - size);
      simple_call<T> plain{{num_positions, width, 1, 0}, num_rows, after, query};
      plain.problem.stage.norm = mhar::output_norm::rms;
      run_on_device(plain.problem, route_verb);

      simple_call<T> fused{{num_positions, width, 1, 0}, num_rows, values, query};
      fused.problem.stage.norm = mhar::output_norm::rms;
      const device_buffer<T> given{delta};
      const device_buffer<T> copy{size};
      mhar::update_problem<T> problem;
      problem.call = fused.problem;
      problem.row = num_rows - 1;
      problem.delta = {given.data(), width};
      problem.sum = {fused.rows.data() + (num_rows - 1) * size, width};
      problem.copy = {copy.data(), width};
      run_on_device(problem, route_verb);
      const auto bytes = static_cast<std::size_t>(size) * sizeof(T);
      CHECK(std::memcmp(fused.y.download().data(), plain.y.download().data(), bytes) == 0);
      CHECK(std::memcmp(copy.download().data(), updated.data(), bytes) == 0);
      CHECK(std::memcmp(fused.rows.download().data(), after.data(), bytes * num_rows) == 0);
      CHECK(copy.guards_intact());
      CHECK(fused.rows.guards_intact());
    }
  }
}

TEST_CASE("route: rows more than 2^31 elements apart")
{
  if (skip_without_gpu()) { return; }
  using T = mhar::bfloat16;
  constexpr std::int64_t width = 1280;
  constexpr std::int64_t apart = (std::int64_t{1} << 31) + 64;
  for (const bool regular : {true, false}) {
    const std::int64_t stride = regular ? apart : apart + 1;
    T* memory = nullptr;
    check_cuda(cudaMalloc(&memory, static_cast<std::size_t>(2 * stride + 300 * width) * sizeof(T)));
    random_inputs random{503};
    const std::vector<T> values = random.vector<T>(3 * 300 * width);
    for (int n = 0; n < 3; ++n) {
      check_cuda(cudaMemcpy(memory + n * stride, values.data() + n * 300 * width,
                            300 * width * sizeof(T), cudaMemcpyHostToDevice));
    }
    const std::vector<float> query = random.vector<float>(width, 0.1);
    simple_call<T> near{{300, width, 8, 0}, 3, values, query};
    run_on_device(near.problem, route_verb);
    const auto expected = near.y.download();
    near.problem.rows = {memory, stride, width, nullptr};
    run_on_device(near.problem, route_verb);
    CHECK(std::memcmp(near.y.download().data(), expected.data(), expected.size() * sizeof(T)) == 0);
    check_cuda(cudaFree(memory));
  }
}

TEST_CASE("route: empty calls succeed and launch nothing, refused ones leave no error behind")
{
  if (skip_without_gpu()) { return; }
  const device_stream stream;
  const mhar::device::context context{stream.get()};
  mhar::route_problem<float> empty;
  empty.extent = {0, 7168, 8, 0};
  empty.num_rows = 3;
  empty.site.query = static_cast<const float*>(nullptr) + 16;
  CHECK(mhar::device::route(empty, context).ok());
  CHECK(cudaGetLastError() == cudaSuccess);

  simple_call<float> call{{2, 64, 1, 0}, 2, constant<float>(256, 1), constant<float>(64, 0)};
  mhar::route_problem<float> wrong = call.problem;
  wrong.extent.num_heads = 3;
  CHECK(mhar::device::route(wrong, context).code == mhar::code::bad_shape);
  wrong = call.problem;
  wrong.outputs.y.data = call.rows.data();
  CHECK(mhar::device::route(wrong, context).code == mhar::code::aliasing);
  CHECK(call.y.untouched());
  CHECK(cudaGetLastError() == cudaSuccess);

  mhar::update_problem<float> update;
  update.call = call.problem;
  update.row = 2;
  update.delta = {call.query.data(), 0};
  CHECK(mhar::device::route(update, context).code == mhar::code::bad_shape);
  update.row = 1;
  update.delta = {};
  CHECK(mhar::device::route(update, context).code == mhar::code::missing_argument);
  update.delta = {call.query.data(), 0};
  update.sum = {call.rows.data(), 64};
  CHECK(mhar::device::route(update, context).code == mhar::code::aliasing);
  update.sum = {};
  update.copy = {call.y.data(), 64};
  CHECK(mhar::device::route(update, context).code == mhar::code::aliasing);

  simple_call<float> wide{
      {1, 40000, 1, 0}, 1, constant<float>(40000, 1), constant<float>(40000, 0)};
  CHECK(mhar::device::workspace_bytes(wide.problem, context) > 0);
  CHECK(mhar::device::route(wide.problem, context).code == mhar::code::small_workspace);
  // Nothing is read or written at these places.
  const int most = 1 << 28;
  mhar::route_problem<float> heads = wide.problem;
  heads.extent = {1, most, most, 0};
  heads.rows.row_stride = 0;
  heads.site.query = static_cast<const float*>(nullptr) + most;
  heads.outputs = {};
  heads.outputs.lse = static_cast<float*>(nullptr) + std::int64_t{64} * most;
  CHECK(mhar::device::route(heads, context).code == mhar::code::unsupported);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(mhar::device::route(call.problem, context).ok());
  stream.wait();
  CHECK(all_equal(call.y.download(), 1, 0));
}

TEST_CASE("route: replayed from a graph, and ordered with what precedes it in its stream")
{
  if (skip_without_gpu()) { return; }
  const device_stream stream;
  for (const auto dependency :
       {mhar::device::dependent_launch::off, mhar::device::dependent_launch::programmatic}) {
    for (const std::int64_t num_positions : {1, 500}) {
      simple_call<mhar::bfloat16> call{{num_positions, 1280, 8, 0},
                                       2,
                                       constant<mhar::bfloat16>(2 * num_positions * 1280, 7),
                                       constant<float>(1280, 0)};
      const mhar::device::context context{stream.get(), nullptr, 0, dependency};
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t replay = nullptr;
      check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
      check_cuda(cudaMemsetAsync(call.rows.data(), 0x40,
                                 static_cast<std::size_t>(call.rows.size()) * 2, stream.get()));
      CHECK(mhar::device::route(call.problem, context).ok());
      check_cuda(cudaStreamEndCapture(stream.get(), &graph));
      check_cuda(cudaGraphInstantiate(&replay, graph, 0));
      for (int i = 0; i < 3; ++i) { check_cuda(cudaGraphLaunch(replay, stream.get())); }
      stream.wait();
      // 0x4040 is 3.
      CHECK(all_equal(call.y.download(), 3, 0));
      check_cuda(cudaGraphExecDestroy(replay));
      check_cuda(cudaGraphDestroy(graph));
    }
  }
}
